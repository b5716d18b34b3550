//! `karp_spot_service_linked_role`: the role by which EC2 starts spot instances in the account.

use std::sync::Arc;

use aws_sdk_iam::types::DeletionTaskStatusType;
use serde::{Deserialize, Serialize};
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Value, async_trait,
};

use super::moved;
use crate::aws::wait::{settle, until};
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// The service whose role it is; its roles, and no others, lie on this path.
const SERVICE: &str = "spot.amazonaws.com";
const PATH: &str = "/aws-service-role/spot.amazonaws.com/";

/// The service-linked role of EC2 Spot.
pub struct SpotServiceLinkedRole {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    name: Option<String>,
    adopted: Option<bool>,
    delete_on_destroy: Option<bool>,
}

struct Found {
    arn: String,
    name: String,
}

impl Model {
    fn of(found: Found, adopted: bool, delete_on_destroy: Option<bool>) -> Self {
        let (arn, name) = (Some(found.arn), Some(found.name));
        Self { id: Some(SERVICE.to_owned()), arn, name, adopted: Some(adopted), delete_on_destroy }
    }
}

impl SpotServiceLinkedRole {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

impl SpotServiceLinkedRole {
    /// Looks at plan whether the role exists; nothing where that cannot be seen, and the apply finds out.
    async fn foresee(&self, ctx: &Context) -> Option<Found> {
        let session = self.handle.session();
        let look = async { find(session.aws().await.ok()?).await.ok().flatten() };
        session.foresee(ctx, look).await
    }
}

#[async_trait]
impl Resource for SpotServiceLinkedRole {
    fn type_name(&self) -> &'static str {
        "karp_spot_service_linked_role"
    }

    fn schema(&self) -> Schema {
        let computed = |what: &str| Attribute::string().computed().use_state_for_unknown().describe(what);
        Schema::new(
            "The service-linked role `AWSServiceRoleForEC2Spot`, without which no spot instance starts. An account has one of it: one that \
             exists already is taken as it is, without being asked, and stays when this resource is destroyed.",
        )
        .attribute("id", computed("Always `spot.amazonaws.com`."))
        .attribute("arn", computed("The role's ARN."))
        .attribute("name", computed("The role's name."))
        .attribute(
            "adopted",
            Attribute::bool().computed().use_state_for_unknown().describe(
                "Whether the role existed before: then it is never deleted by this resource. Where it exists already, the plan says so.",
            ),
        )
        .attribute(
            "delete_on_destroy",
            Attribute::bool().default(false).describe(
                "Delete the role at destroy, if this resource made it. Everything else in the account that starts spot instances needs it \
                 too, so that it stays by default; AWS refuses to delete it while spot instances or requests exist.",
            ),
        )
        .timeouts(Timeouts::default())
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        if !change.is_create() {
            return Diagnostics::new();
        }
        let Some(found) = self.foresee(ctx).await else { return Diagnostics::new() };
        adopt(change, found).into_iter().collect()
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let planned_adoption = planned.get("adopted").as_bool() == Some(true);
        let model: Model = tfplugin::from_value(&planned)?;
        let (found, adopted) = match find(aws).await? {
            Some(found) => (found, true),
            None if planned_adoption => {
                let doing = format!("take over the service-linked role of {SERVICE}");
                let failure = Failure::new(Kind::Missing, doing, "it was deleted after this plan was made");
                return Err(failure.with_fix("Plan again: it is made then.").into());
            }
            None => make(aws, ctx).await?,
        };
        Ok(tfplugin::to_value(&Model::of(found, adopted, model.delete_on_destroy))?)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let Some(found) = find(session.aws().await?).await? else { return Ok(None) };
            // An import knows no origin: the role existed before.
            let adopted = model.adopted.unwrap_or(true);
            let state = state.clone().with("id", SERVICE).with("arn", found.arn).with("name", found.name);
            Ok(Some(state.with("adopted", adopted).with("delete_on_destroy", model.delete_on_destroy == Some(true))))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, _ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        Ok(planned)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&prior)?;
        if model.adopted != Some(false) || model.delete_on_destroy != Some(true) {
            return Ok(());
        }
        Ok(delete(session.aws().await?, ctx, model.name.as_deref().unwrap_or_default()).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        if id == SERVICE || id.contains(&format!(":role{PATH}")) {
            return Ok(bare());
        }
        Err(Diagnostic::error("The import id is malformed", "Write `spot.amazonaws.com`, or the role's ARN.").into())
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_iam_service_linked_role", |old| {
            match old.text("aws_service_name")? {
            // The configuration that hands it over made it, so that `delete_on_destroy` may end it.
            SERVICE => Ok(bare().with("adopted", false)),
            other => Err(Diagnostic::error(
                "Another service's role",
                format!(
                    "This aws_iam_service_linked_role is that of {other:?}, and a karp_spot_service_linked_role is that of {SERVICE:?}: \
                     take the moved block away, and leave the role where it is."
                ),
            )
            .into()),
        }
        })
    }
}

/// Plans to take the role as it is; warns of what is asked for in vain.
fn adopt(change: &mut PlannedChange, found: Found) -> Option<Diagnostic> {
    let asked = change.planned.get("delete_on_destroy").as_bool() == Some(true);
    let detail = format!(
        "{} exists already and is taken as it is: as it was not made by this resource, a destroy leaves it, whatever `delete_on_destroy` says.",
        found.arn
    );
    let planned = change.planned.clone().with("id", SERVICE).with("adopted", true);
    change.planned = planned.with("arn", found.arn).with("name", found.name);
    asked.then(|| Diagnostic::warning("The role will stay at destroy", detail).at("delete_on_destroy"))
}

/// Gives the state with which an import begins.
fn bare() -> Value {
    Value::object([("id", SERVICE)])
}

/// Finds the role by its path: that is the service's own, whatever the role is called. A page of IAM's may be empty before the one that has it.
async fn find(aws: &Aws) -> Result<Option<Found>, Failure> {
    let mut roles = aws.iam().list_roles().path_prefix(PATH).into_paginator().items().send();
    let Some(role) = roles.next().await else { return Ok(None) };
    let role = role.map_err(|e| Failure::aws(format!("look for the role of {SERVICE}"), e))?;
    Ok(Some(Found { arn: role.arn().to_owned(), name: role.role_name().to_owned() }))
}

/// Makes the role; says whether another was faster.
async fn make(aws: &Aws, ctx: &Context) -> Result<(Found, bool), Failure> {
    let doing = format!("create the service-linked role of {SERVICE}");
    match aws.iam().create_service_linked_role().aws_service_name(SERVICE).send().await {
        Ok(answer) => {
            let role = answer.role().ok_or_else(|| Failure::new(Kind::Unexpected, &doing, "IAM answered no role"))?;
            Ok((Found { arn: role.arn().to_owned(), name: role.role_name().to_owned() }, false))
        }
        // "Service role name … has been taken in this account": it may not be listed yet.
        Err(e) => match Failure::aws(&doing, e) {
            failure if failure.kind == Kind::Exists || failure.message.contains("has been taken") => {
                let look = || async {
                    let unsettled = || Failure::new(Kind::Unsettled, &doing, "it exists, and IAM does not list it yet");
                    find(aws).await?.ok_or_else(unsettled)
                };
                Ok((settle(ctx, &doing, look).await?, true))
            }
            failure => Err(failure),
        },
    }
}

async fn delete(aws: &Aws, ctx: &Context, name: &str) -> Result<(), Failure> {
    let doing = format!("delete the service-linked role {name:?}");
    let task = match aws.iam().delete_service_linked_role().role_name(name).send().await {
        Ok(answer) => answer.deletion_task_id().to_owned(),
        Err(e) => match Failure::aws(&doing, e) {
            failure if failure.is_missing() => return Ok(()),
            failure => return Err(failure),
        },
    };
    until(ctx.stop(), ctx.remaining(), &doing, || async {
        let answer = aws.iam().get_service_linked_role_deletion_status().deletion_task_id(&task).send().await;
        let answer = answer.map_err(|e| Failure::aws(&doing, e))?;
        match answer.status() {
            DeletionTaskStatusType::Succeeded => Ok(Some(())),
            DeletionTaskStatusType::Failed => {
                let why = answer.reason().and_then(|reason| reason.reason()).unwrap_or("IAM gives no reason");
                Err(Failure::new(Kind::InUse, &doing, why).with_fix(
                    "End the spot instances and requests of the account first, or set `delete_on_destroy = false`.",
                ))
            }
            _ => Ok(None),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_that_the_role_is_there_and_stays() {
        let role = || Found {
            arn: format!("arn:aws:iam::1:role{PATH}AWSServiceRoleForEC2Spot"),
            name: "AWSServiceRoleForEC2Spot".to_owned(),
        };
        for (asked, warned) in [(false, false), (true, true)] {
            let open = Value::object(["id", "arn", "name", "adopted"].map(|name| (name, Value::Unknown)));
            let planned = open.with("delete_on_destroy", asked);
            let mut change =
                PlannedChange { prior: Value::Null, config: Value::Null, planned, requires_replace: Vec::new() };
            let warning = adopt(&mut change, role());
            assert_eq!(warning.is_some(), warned);
            let planned: Model = tfplugin::from_value(&change.planned).expect("all is known");
            assert_eq!((planned.adopted, planned.arn, planned.name), (Some(true), Some(role().arn), Some(role().name)));
            assert!(warning.is_none_or(
                |found| found.path.to_string() == "delete_on_destroy" && found.detail.contains("exists already")
            ));
        }
    }
}
