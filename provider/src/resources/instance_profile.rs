//! `karp_instance_profile`: the instance profile by which nodes get their role.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tfplugin::{Attribute, Context, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Value, async_trait};

use super::{iam_role, identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::Marked;
use crate::aws::names::LONGEST_PROFILE;
use crate::aws::profile::{self, Found};
use crate::aws::role::{self, check_adoptable, check_path};
use crate::aws::tags::{Change, GivenTags, IamObject, Tags, iam_tags};
use crate::aws::wait::settle;
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

const PREFIX: &str = "KarpNodeInstanceProfile-";

/// An instance profile.
pub struct InstanceProfile {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    unique_id: Option<String>,
    cluster_name: Option<String>,
    name: Option<String>,
    name_prefix: Option<String>,
    path: Option<String>,
    role_name: Option<String>,
    adopt: Option<bool>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
}

impl InstanceProfile {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for InstanceProfile {
    fn type_name(&self) -> &'static str {
        "karp_instance_profile"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "The instance profile by which EC2 instances get the node role. Name it in a node class as `instance_profile`; then the \
             controller needs no permission to make instance profiles itself.",
        );
        let schema = inherit::adopt(inherit::tags(inherit::cluster_name(schema)));
        let schema = inherit::name(schema, PREFIX, LONGEST_PROFILE);
        inherit::id_and_arn(schema, "The instance profile's name.")
            .identity(identity::of_account())
            .attribute("path", inherit::path("The path of the instance profile."))
            .attribute(
                "role_name",
                Attribute::string()
                    .required()
                    .validate(inherit::aws_name(64))
                    .describe("The role's name, not its ARN. Another role is put in without a new instance profile."),
            )
            .attribute(
                "unique_id",
                Attribute::string()
                    .computed()
                    .use_state_for_unknown()
                    .describe("The id by which IAM tells profiles of equal names apart."),
            )
            .timeouts(Timeouts::default())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        let mut found = inherit::plan_cluster_name(&session, change);
        inherit::plan_name(change, PREFIX, LONGEST_PROFILE);
        found.extend(inherit::plan_tags(&session, change));
        inherit::reopen_on_replace(change, &["id", "arn", "unique_id"]);
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let model = resolve(&session, &planned)?;
        let mut answered = session.answered(aws);
        let (bare, origin) = create(aws, &session, &model).await?;
        if origin == Origin::Made {
            let own = session.owned_part(&bare.tags, model.tags_all.as_ref());
            ctx.save(tfplugin::to_value(&render(&model, &Found { tags: own, ..bare.clone() }))?);
            answered.made(origin, Marked::Iam(IamObject::InstanceProfile(bare.name.clone())));
        }
        converge(aws, ctx, &bare, &model, &Tags::new()).await?;
        let now = Found { role: model.role_name.clone(), tags: model.tags_all.clone().unwrap_or_default(), ..bare };
        Ok(tfplugin::to_value(&render(&model, &now))?)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let aws = session.aws().await?;
            let Some(mut found) = profile::find(aws.iam(), model.name.as_deref().unwrap_or_default()).await? else {
                return Ok(None);
            };
            let actual = std::mem::take(&mut found.tags);
            found.tags = session.owned_part(&actual, model.tags_all.as_ref());
            let state = tfplugin::to_value(&render(&model, &found));
            let state = state.map_err(|e| Failure::new(Kind::Unexpected, "write the state", e.to_string()))?;
            Ok(Some(session.recover(state, &actual, model.tags_all.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let model = resolve(&session, &planned)?;
        let name = model.name.clone().unwrap_or_default();
        let Some(found) = profile::find(aws.iam(), &name).await? else {
            let doing = format!("update instance profile {name:?}");
            return Err(Failure::new(Kind::Missing, doing, "it was deleted after this plan was made")
                .with_fix("Plan again.")
                .into());
        };
        converge(aws, ctx, &found, &model, &session.owned(&prior)).await?;
        let now = Found { role: model.role_name.clone(), tags: model.tags_all.clone().unwrap_or_default(), ..found };
        Ok(tfplugin::to_value(&render(&model, &now))?)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let name = prior.get("name").as_str().unwrap_or_default();
        let Some(found) = profile::find(aws.iam(), name).await? else { return Ok(()) };
        if let Some(role) = &found.role {
            profile::remove_role(aws.iam(), name, role).await?;
        }
        Ok(profile::delete(aws.iam(), ctx, name).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(iam_role::import(id))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_iam_instance_profile", |old| Ok(old.tagged(iam_role::import(old.text("name")?))))
    }
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    Ok(model)
}

fn render(model: &Model, found: &Found) -> Model {
    Model {
        id: Some(found.name.clone()),
        arn: Some(found.arn.clone()),
        unique_id: Some(found.unique_id.clone()),
        cluster_name: model.cluster_name.clone(),
        name: Some(found.name.clone()),
        name_prefix: model.name_prefix.clone(),
        path: Some(found.path.clone()),
        role_name: found.role.clone(),
        adopt: model.adopt,
        tags: model.tags.clone(),
        tags_all: Some(found.tags.clone()),
    }
}

async fn create(aws: &Aws, session: &Session, model: &Model) -> Result<(Found, Origin), Failure> {
    let name = model.name.clone().unwrap_or_default();
    let wanted = model.tags_all.clone().unwrap_or_default();
    let path = model.path.as_deref().unwrap_or("/");
    let doing = format!("create instance profile {name:?}");
    let call = aws.iam().create_instance_profile().instance_profile_name(&name).path(path);
    let mark = Mark::new();
    match call.set_tags(Some(iam_tags(&mark.on(&wanted)))).send().await {
        Ok(answer) => answer
            .instance_profile()
            .map(|profile| (Found { tags: wanted, ..Found::from(profile) }, Origin::Made))
            .ok_or_else(|| Failure::new(Kind::Unexpected, &doing, "IAM answered without the instance profile")),
        Err(e) => {
            let failure = Failure::aws(&doing, e).at("name");
            if failure.kind != Kind::Exists {
                return Err(failure);
            }
            let Some(existing) = profile::find(aws.iam(), &name).await? else { return Err(failure) };
            if let Some(tags) = mark.resumed(&existing.tags, &wanted) {
                check_path(&doing, &existing.path, path)?;
                return Ok((Found { tags, ..existing }, Origin::Made));
            }
            check_adoptable(&doing, &existing.tags, &wanted).map_err(|f| f.at("name"))?;
            if !model.adopt.unwrap_or(session.model().adopt_existing) {
                return Err(failure);
            }
            check_path(&doing, &existing.path, path)?;
            Ok((existing, Origin::Adopted))
        }
    }
}

/// Brings role and tags to what is wanted. A profile holds one role at most, so the old one leaves first.
async fn converge(aws: &Aws, ctx: &Context, found: &Found, model: &Model, owned: &Tags) -> Result<(), Failure> {
    let iam = aws.iam();
    let name = &found.name;
    let role = model.role_name.clone().unwrap_or_default();
    if found.role.as_ref() != Some(&role) {
        if let Some(old) = &found.role {
            // nodes start with the old one until the new one is there
            let doing = format!("put role {role:?} into instance profile {name:?}");
            settle(ctx, &doing, || async {
                let missing = || Failure::new(Kind::Unsettled, &doing, "there is no such role").at("role_name");
                match role::is_there(iam, &role).await {
                    Ok(false) => Err(missing()),
                    // who may not look finds out by the call itself
                    Err(failure) if failure.kind != Kind::Denied => Err(failure),
                    _ => Ok(()),
                }
            })
            .await?;
            profile::remove_role(iam, name, old).await?;
        }
        if let Err(failure) = profile::add_role(iam, ctx, name, &role).await {
            let failure = match &found.role {
                Some(old) => match profile::put_role(iam, name, old).await {
                    Ok(()) => failure,
                    Err(second) => not_put_back(failure, old, &second),
                },
                None => failure,
            };
            return Err(failure.at("role_name"));
        }
    }
    let change = Change::between(model.tags_all.as_ref().unwrap_or(&Tags::new()), &found.tags, owned);
    IamObject::InstanceProfile(name.clone()).retag(iam, &change).await
}

/// Tells why a role could not be put in, and then why the one before it could not be put back.
fn not_put_back(first: Failure, old: &str, second: &Failure) -> Failure {
    let message =
        format!("{}; role {old:?}, which was in it before, could not be put back: {}", first.message, second.message);
    Failure { message, ..first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_told_before_the_one_of_putting_back() {
        let first = Failure::new(Kind::Denied, "put role \"new\" into instance profile \"p\"", "may not pass new");
        let told =
            not_put_back(first, "old", &Failure::new(Kind::Throttled, "put role \"old\" back", "too many calls"));
        assert_eq!((told.kind, told.doing.as_str()), (Kind::Denied, "put role \"new\" into instance profile \"p\""));
        let words = ["may not pass new", "\"old\"", "too many calls"].map(|word| told.message.find(word));
        assert!(words.is_sorted() && words[0].is_some(), "{}", told.message);
    }
}
