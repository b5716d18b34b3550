//! `karp_access_entry`: lets nodes with a role join the cluster.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Value, async_trait,
};

use super::{identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::Marked;
use crate::aws::tags::{Change, GivenTags, Tags, retag_eks};
use crate::aws::wait::{gone, in_time, settle};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

/// An access entry of an EKS cluster.
pub struct AccessEntry {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    cluster_name: Option<String>,
    principal_arn: Option<String>,
    r#type: Option<String>,
    adopt: Option<bool>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
}

struct Found {
    arn: String,
    r#type: String,
    tags: Tags,
}

impl AccessEntry {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for AccessEntry {
    fn type_name(&self) -> &'static str {
        "karp_access_entry"
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "An access entry of the cluster: nodes with this role may join. It waits until EKS knows a role that was created a moment \
             ago.",
        );
        let schema = inherit::region(inherit::adopt(inherit::tags(schema)));
        inherit::id_and_arn(schema, "`cluster_name:principal_arn`.")
            .identity(identity::of_cluster("principal_arn", "The ARN of the nodes' role."))
            .attribute("cluster_name", inherit::cluster_name_attribute().requires_replace())
            .attribute(
                "principal_arn",
                Attribute::string()
                    .required()
                    .requires_replace()
                    .validate(validate::role_arn())
                    .describe("The ARN of the nodes' role."),
            )
            .attribute(
                "type",
                Attribute::string()
                    .default("EC2_LINUX")
                    .requires_replace()
                    .validate(validate::one_of(["EC2_LINUX", "EC2_WINDOWS", "FARGATE_LINUX", "HYBRID_LINUX", "EC2"]))
                    .describe(
                        "What joins: `EC2_LINUX`, `EC2_WINDOWS`, `FARGATE_LINUX`, `HYBRID_LINUX` or `EC2` (Auto Mode).",
                    ),
            )
            .timeouts(Timeouts::default())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        inherit::plan_region(&session, change).await;
        inherit::plan_cluster_member(&session, change, &["id", "arn"])
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&planned).await?;
        let model = resolve(&session, &planned)?;
        let adopt = model.adopt.unwrap_or(session.model().adopt_existing);
        let mut answered = session.answered(aws);
        let (arn, origin) = create(aws, ctx, &model, adopt).await?;
        answered.made(origin, Marked::Eks(arn.clone()));
        Ok(tfplugin::to_value(&Model { id: Some(id_of(&model)), arn: Some(arn), ..model })?)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let Some(found) = find(&session.aws_of(&state).await?, &model).await? else { return Ok(None) };
            let tags = session.owned_part(&found.tags, model.tags_all.as_ref());
            let state = state.clone().with("arn", found.arn).with("type", found.r#type);
            let state = state.with("id", id_of(&model)).with("tags_all", tags);
            Ok(Some(session.recover(state, &found.tags, model.tags_all.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&prior).await?;
        let before: Model = tfplugin::from_value(&prior)?;
        let model = resolve(&session, &planned)?;
        let arn = model.arn.clone().or(before.arn).unwrap_or_default();
        let wanted = model.tags_all.clone().unwrap_or_default();
        let owned = session.owned(&prior);
        let actual = find(aws, &model).await?.map(|found| found.tags).unwrap_or_default();
        in_time(ctx, &format!("tag access entry {}", id_of(&model)))?;
        retag_eks(aws, &arn, &Change::between(&wanted, &actual, &owned)).await?;
        Ok(tfplugin::to_value(&Model { id: Some(id_of(&model)), arn: Some(arn), ..model })?)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws_of(&prior).await?;
        let model: Model = tfplugin::from_value(&prior)?;
        let doing = format!("delete access entry {}", id_of(&model));
        let call = aws.eks().delete_access_entry().set_cluster_name(model.cluster_name.clone());
        let call = call.set_principal_arn(model.principal_arn.clone());
        let delete = || async { call.clone().send().await.map(drop).map_err(|e| Failure::aws(&doing, e)) };
        Ok(gone(ctx, &doing, delete).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (id, region) = inherit::id_and_region(id);
        match id.split_once(':') {
            Some((cluster, principal)) if principal.starts_with("arn:") => {
                Ok(bare(cluster, principal).with("region", region))
            }
            _ => {
                let detail = "Write `cluster_name:principal_arn`, or `cluster_name:principal_arn@REGION`.";
                Err(Diagnostic::error("The import id is malformed", detail).into())
            }
        }
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_eks_access_entry", |old| {
            let bare = bare(old.text("cluster_name")?, old.text("principal_arn")?);
            Ok(old.tagged(bare.with("region", old.region())))
        })
    }
}

/// Gives the state with which an import begins.
fn bare(cluster: &str, principal: &str) -> Value {
    let id = format!("{cluster}:{principal}");
    Value::object([("id", id.as_str()), ("cluster_name", cluster), ("principal_arn", principal)])
}

fn id_of(model: &Model) -> String {
    format!(
        "{}:{}",
        model.cluster_name.as_deref().unwrap_or_default(),
        model.principal_arn.as_deref().unwrap_or_default()
    )
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    Ok(model)
}

async fn create(aws: &Aws, ctx: &Context, model: &Model, adopt: bool) -> Result<(String, Origin), Failure> {
    let (doing, mark) = (format!("create access entry {}", id_of(model)), Mark::new());
    let wanted = model.tags_all.clone().unwrap_or_default();
    let call = || async {
        let call = aws.eks().create_access_entry().set_cluster_name(model.cluster_name.clone());
        let call = call.set_principal_arn(model.principal_arn.clone()).set_type(model.r#type.clone());
        call.set_tags(Some(mark.on(&wanted).into_iter().collect())).send().await.map_err(|e| {
            // EKS looks the role up in IAM, which may not have it everywhere yet.
            Failure::aws(&doing, e).at("principal_arn").unsettled_if(|f| {
                f.code.as_deref() == Some("InvalidParameterException") && f.message.contains("principal")
            })
        })
    };
    match settle(ctx, &doing, call).await {
        Ok(answer) => {
            let arn = answer.access_entry().and_then(|entry| entry.access_entry_arn()).unwrap_or_default();
            Ok((arn.to_owned(), Origin::Made))
        }
        Err(failure) if failure.kind == Kind::InUse => {
            let existing = find(aws, model).await?;
            let resumed = existing.as_ref().and_then(|found| mark.resumed(&found.tags, &wanted));
            let (ours, origin) =
                (adopt || resumed.is_some(), if resumed.is_some() { Origin::Made } else { Origin::Adopted });
            match existing {
                Some(found) if ours && Some(&found.r#type) == model.r#type.as_ref() => {
                    let tags = resumed.unwrap_or(found.tags);
                    retag_eks(aws, &found.arn, &Change::between(&wanted, &tags, &Tags::new())).await?;
                    Ok((found.arn, origin))
                }
                Some(found) if ours => Err(failure.of_kind(Kind::Exists).with_fix(format!(
                    "The existing entry has type {}: set `type` to that, or delete the entry.",
                    found.r#type
                ))),
                _ => Err(failure.of_kind(Kind::Exists)),
            }
        }
        Err(failure) if failure.is_missing() => Err(failure.of_kind(Kind::NoCluster).at("cluster_name").with_fix(
            format!("There is no such cluster in region {}: check `cluster_name` and `region`.", aws.region()),
        )),
        Err(failure) => Err(advised(failure)),
    }
}

/// Says what to do where the cluster has no access entries at all: EKS says no more than that its authentication mode must be another.
fn advised(failure: Failure) -> Failure {
    if failure.kind != Kind::Invalid || !failure.message.contains("authentication mode") {
        return failure;
    }
    failure.at("cluster_name").with_fix(
        "The cluster knows its nodes by the ConfigMap `aws-auth` alone: use `karp_aws_auth_entry` instead, or set its authentication mode to \
         `API_AND_CONFIG_MAP` first, which reads both and cannot be taken back.",
    )
}

async fn find(aws: &Aws, model: &Model) -> Result<Option<Found>, Failure> {
    let call = aws.eks().describe_access_entry().set_cluster_name(model.cluster_name.clone());
    match call.set_principal_arn(model.principal_arn.clone()).send().await {
        Ok(answer) => Ok(answer.access_entry().map(|entry| Found {
            arn: entry.access_entry_arn().unwrap_or_default().to_owned(),
            r#type: entry.r#type().unwrap_or_default().to_owned(),
            tags: entry.tags().map(|tags| tags.clone().into_iter().collect()).unwrap_or_default(),
        })),
        Err(e) => match Failure::aws(format!("read access entry {}", id_of(model)), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(advised(failure)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_access_entries_is_told_what_it_has() {
        let refused = |message: &str| {
            let error = karp_aws::Error::from_code("eks:Test", "InvalidRequestException", message.to_owned());
            advised(Failure::from_aws("create access entry", error))
        };
        let told = refused(
            "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this operation.",
        );
        assert!(told.detail().contains("use `karp_aws_auth_entry` instead"), "{}", told.detail());
        assert_eq!(told.attribute, Some("cluster_name"));
        let other = refused("You can not specify kubernetesGroups or a username for access entries of type EC2_LINUX");
        assert_eq!((other.fix, other.attribute), (None, None));
    }
}
