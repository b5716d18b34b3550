//! `karp_oidc_provider`: lets service accounts of the cluster be IAM roles (IRSA). An account has one per cluster, so one that exists
//! already is taken over rather than refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Type, Value,
    async_trait,
};

use super::{iam_role, identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::Marked;
use crate::aws::names::is_region;
use crate::aws::tags::{Change, GivenTags, IamObject, Tags, from_iam_tags, iam_tags};
use crate::aws::wait::{gone, settle};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

/// The audience of the tokens that pods present to STS.
const AUDIENCE: &str = "sts.amazonaws.com";

/// The OIDC provider of a cluster.
pub struct OidcProvider {
    handle: Arc<Handle>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    cluster_name: Option<String>,
    url: Option<String>,
    adopt: Option<bool>,
    adopted: Option<bool>,
    audiences: Option<BTreeSet<String>>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
}

struct Found {
    /// The issuer without its scheme.
    issuer: String,
    audiences: Vec<String>,
    tags: Tags,
}

impl OidcProvider {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for OidcProvider {
    fn type_name(&self) -> &'static str {
        "karp_oidc_provider"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "The IAM OIDC provider of the cluster, by which service accounts get IAM roles. The issuer comes from EKS. One that exists \
             already is adopted, and then left in place when this resource is destroyed.",
        );
        inherit::id_and_arn(inherit::tags(schema), "The ARN.")
            .identity(identity::of_world("arn", "The ARN."))
            // the plan replaces it where the cluster changes, but not where an import did not find out which it is
            .attribute(
                "cluster_name",
                inherit::cluster_name_attribute().describe(
                    "The EKS cluster; the provider block's `cluster_name` when left out. A change replaces the resource.",
                ),
            )
            .attribute("region", region())
            .attribute("url", Attribute::string().computed().use_state_for_unknown().describe("The issuer's URL."))
            .attribute(
                "adopt",
                Attribute::bool()
                    .default(true)
                    .describe("Take over a provider of this issuer that exists already, instead of failing."),
            )
            .attribute(
                "adopted",
                Attribute::bool()
                    .computed()
                    .use_state_for_unknown()
                    .describe("Whether the provider existed before: then destroying this resource leaves it in place."),
            )
            .attribute(
                "audiences",
                Attribute::set(Type::String)
                    .computed()
                    .describe("The audiences that karp keeps there: `sts.amazonaws.com`. Those of others are left alone."),
            )
            .timeouts(Timeouts::default())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        if !change.is_destroy() {
            change.planned.set("audiences", iam_role::text_set(&BTreeSet::from([AUDIENCE.to_owned()])));
        }
        plan_region(&session, change).await;
        inherit::plan_cluster_member(&session, change, &["id", "arn", "url", "adopted"])
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let model = resolve(&session, &planned)?;
        let cluster = session
            .cluster_of(&planned, model.cluster_name.as_deref().unwrap_or_default())
            .await
            .map_err(|f| f.at("cluster_name"))?;
        let Some(url) = cluster.oidc_issuer.clone() else {
            return Err(Diagnostic::error(
                "The cluster has no OIDC issuer",
                format!(
                    "EKS names none for cluster {:?}. It comes with every EKS cluster once that is ACTIVE.",
                    cluster.name
                ),
            )
            .at("cluster_name")
            .into());
        };
        // cut off, it may be made all the same: the next apply knows it by its mark
        let mut answered = session.answered(aws);
        let (arn, found, origin) = ctx.carry_out(create_or_adopt(aws, &url, &model)).await??;
        let adopted = Some(origin == Origin::Adopted);
        let state = Model { id: Some(arn.clone()), arn: Some(arn.clone()), url: Some(url), adopted, ..model };
        ctx.save(tfplugin::to_value(&state)?);
        answered.made(origin, Marked::Iam(IamObject::OidcProvider(arn.clone())));
        if let Some(found) = found.as_ref().filter(|_| origin == Origin::Adopted) {
            let theirs: Vec<&String> = found.tags.keys().collect();
            ctx.set_private(serde_json::to_vec(&theirs).unwrap_or_default());
        }
        if let Some(found) = found {
            converge(aws, ctx, &arn, &found, &state, &Tags::new()).await?;
        }
        Ok(tfplugin::to_value(&state)?)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let arn = model.arn.clone().or(model.id.clone()).unwrap_or_default();
            let Some(found) = find(session.aws().await?, &arn).await? else { return Ok(None) };
            let tags = session.owned_part(&found.tags, model.tags_all.as_ref());
            let state = state.clone().with("id", &arn).with("arn", &arn).with("tags_all", tags);
            let state =
                state.with("url", format!("https://{}", found.issuer)).with("adopt", model.adopt.unwrap_or(true));
            let audiences = found.audiences.into_iter().filter(|audience| audience == AUDIENCE).collect();
            let state = state.with("adopted", model.adopted.unwrap_or_default());
            let state = state.with("audiences", iam_role::text_set(&audiences));
            Ok(Some(session.recover(state, &found.tags, model.tags_all.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let before: Model = tfplugin::from_value(&prior)?;
        let model = resolve(&session, &planned)?;
        let arn = before.arn.unwrap_or_default();
        let Some(found) = find(aws, &arn).await? else {
            return Err(Failure::new(
                Kind::Missing,
                format!("update {arn}"),
                "it was deleted after this plan was made",
            )
            .with_fix("Plan again: it is created anew then.")
            .into());
        };
        converge(aws, ctx, &arn, &found, &model, &session.owned(&prior)).await?;
        let (url, adopted) = (before.url, before.adopted);
        Ok(tfplugin::to_value(&Model { id: Some(arn.clone()), arn: Some(arn), url, adopted, ..model })?)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let model: Model = tfplugin::from_value(&prior)?;
        let arn = model.arn.clone().unwrap_or_default();
        if model.adopted == Some(true) {
            if let Some(found) = find(aws, &arn).await? {
                // what its owner had before is the owner's
                let theirs: BTreeSet<String> = serde_json::from_slice(&ctx.private()).unwrap_or_default();
                let mut owned = session.owned(&prior);
                owned.retain(|key, _| !theirs.contains(key));
                retag(aws, ctx, &arn, &Change::between(&Tags::new(), &found.tags, &owned)).await?;
            }
            return Ok(());
        }
        let (doing, call) = (format!("delete {arn}"), aws.iam().delete_open_id_connect_provider());
        let call = call.open_id_connect_provider_arn(&arn);
        let delete = || async { call.clone().send().await.map(drop).map_err(|e| Failure::aws(&doing, e)) };
        Ok(gone(ctx, &doing, delete).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (arn, region) = inherit::id_and_region(id);
        if !arn.contains(":oidc-provider/") {
            let detail = "Write the ARN of the OIDC provider, or `ARN@REGION`.";
            return Err(Diagnostic::error("The import id is malformed", detail).into());
        }
        Ok(bare(arn).with("region", region))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_iam_openid_connect_provider", |old| Ok(old.tagged(bare(old.text("arn")?))))
    }
}

/// Declares `region`: IAM has none, and the cluster whose issuer it is has one.
fn region() -> Attribute {
    let region = validate::text("must be an AWS region such as \"eu-west-1\"", is_region);
    Attribute::string().optional().validate(region).describe(
        "The AWS region of the cluster; the provider block's `region` when left out. A change to another region than the cluster's replaces the \
         resource; writing down the region that it is in changes nothing in AWS. An import takes it as `@REGION` behind the ARN.",
    )
}

/// Plans `region`. Where a state does not say it, as that of an import, the issuer does.
async fn plan_region(session: &Session, change: &mut PlannedChange) {
    if !change.is_update() || !change.changed("region") {
        return;
    }
    let arn = change.prior.get("arn").as_str().unwrap_or_default();
    let told = arn.split(['.', '/']).find(|part| is_region(part)).filter(|_| change.prior.get("region").is_null());
    let placed = match told {
        Some(told) => change.prior.clone().with("region", told),
        None => change.prior.clone(),
    };
    let prior = std::mem::replace(&mut change.prior, placed);
    inherit::plan_region(session, change).await;
    change.prior = prior;
}

/// Gives the state with which an import begins. Imported means wanted as one's own: destroying the resource then deletes it.
fn bare(arn: &str) -> Value {
    Value::object([("id", arn), ("arn", arn)]).with("adopted", false)
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    Ok(model)
}

fn without_scheme(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

/// Gives the ARN, what there was before, and whether that is this creation's to go on with or somebody's to take over.
async fn create_or_adopt(aws: &Aws, url: &str, model: &Model) -> Result<(String, Option<Found>, Origin), Failure> {
    let (doing, mark) = (format!("create the OIDC provider of {url}"), Mark::new());
    let tags = model.tags_all.clone().unwrap_or_default();
    let call = aws.iam().create_open_id_connect_provider().url(url).client_id_list(AUDIENCE);
    match call.set_tags(Some(iam_tags(&mark.on(&tags)))).send().await {
        Ok(answer) => Ok((answer.open_id_connect_provider_arn().unwrap_or_default().to_owned(), None, Origin::Made)),
        Err(e) => {
            let failure = Failure::aws(&doing, e);
            if failure.kind != Kind::Exists {
                return Err(failure);
            }
            let list = aws.iam().list_open_id_connect_providers().send().await.map_err(|e| Failure::aws(&doing, e))?;
            let suffix = format!(":oidc-provider/{}", without_scheme(url));
            let mut arns = list.open_id_connect_provider_list().iter().filter_map(|entry| entry.arn());
            let Some(arn) = arns.find(|arn| arn.ends_with(&suffix)) else { return Err(failure) };
            let found = find(aws, arn).await?;
            let resumed = found.as_ref().and_then(|found| mark.resumed(&found.tags, &tags));
            match (found, resumed) {
                (Some(found), Some(tags)) => Ok((arn.to_owned(), Some(Found { tags, ..found }), Origin::Made)),
                (Some(_), None) if model.adopt == Some(false) => Err(failure),
                (found, _) => Ok((arn.to_owned(), found, Origin::Adopted)),
            }
        }
    }
}

async fn find(aws: &Aws, arn: &str) -> Result<Option<Found>, Failure> {
    match aws.iam().get_open_id_connect_provider().open_id_connect_provider_arn(arn).send().await {
        Ok(answer) => Ok(Some(Found {
            issuer: without_scheme(answer.url().unwrap_or_default()).to_owned(),
            audiences: answer.client_id_list().to_vec(),
            tags: from_iam_tags(answer.tags()),
        })),
        Err(e) => match Failure::aws(format!("read {arn}"), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

async fn converge(
    aws: &Aws,
    ctx: &Context,
    arn: &str,
    found: &Found,
    model: &Model,
    owned: &Tags,
) -> Result<(), Failure> {
    if !found.audiences.iter().any(|audience| audience == AUDIENCE) {
        let doing = format!("add audience {AUDIENCE} to {arn}");
        let call =
            aws.iam().add_client_id_to_open_id_connect_provider().open_id_connect_provider_arn(arn).client_id(AUDIENCE);
        settle(ctx, &doing, || async { call.clone().send().await.map(drop).map_err(|e| Failure::aws(&doing, e)) })
            .await?;
    }
    let wanted = model.tags_all.clone().unwrap_or_default();
    retag(aws, ctx, arn, &Change::between(&wanted, &found.tags, owned)).await
}

async fn retag(aws: &Aws, ctx: &Context, arn: &str, change: &Change) -> Result<(), Failure> {
    let object = IamObject::OidcProvider(arn.to_owned());
    settle(ctx, &format!("tag {arn}"), || object.retag(aws.iam(), change)).await
}
