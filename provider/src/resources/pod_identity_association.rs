//! `karp_pod_identity_association`: which role the pods of a service account get, for a role that is made elsewhere.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Value, async_trait,
};

use super::{identity, inherit, moved};
use crate::aws::Origin;
use crate::aws::marked::Marked;
use crate::aws::pod_identity::{self, Found, Subject, Wanted};
use crate::aws::tags::{GivenTags, Tags};
use crate::aws::wait::settle;
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::Failure;
use crate::session::{Aws, Session};

/// A pod identity association of an EKS cluster.
pub struct PodIdentityAssociation {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    arn: Option<String>,
    association_id: Option<String>,
    cluster_name: Option<String>,
    namespace: Option<String>,
    service_account: Option<String>,
    role_arn: Option<String>,
    adopt: Option<bool>,
    tags: Option<GivenTags>,
    tags_all: Option<Tags>,
}

impl Model {
    fn subject(&self) -> Subject<'_> {
        Subject {
            cluster: self.cluster_name.as_deref().unwrap_or_default(),
            namespace: self.namespace.as_deref().unwrap_or_default(),
            service_account: self.service_account.as_deref().unwrap_or_default(),
        }
    }

    fn role_arn(&self) -> &str {
        self.role_arn.as_deref().unwrap_or_default()
    }

    async fn ensure(&self, aws: &Aws, ctx: &Context, tags: &Tags, owned: &Tags) -> Result<Found, Failure> {
        pod_identity::ensure(aws, ctx, &self.subject(), &Wanted { role_arn: self.role_arn(), tags, owned }).await
    }

    fn associated(self, found: Found) -> Self {
        let id = format!("{},{}", self.subject().cluster, found.id);
        Self { id: Some(id), arn: Some(found.arn), association_id: Some(found.id), ..self }
    }
}

impl PodIdentityAssociation {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for PodIdentityAssociation {
    fn type_name(&self) -> &'static str {
        "karp_pod_identity_association"
    }

    fn schema(&self) -> Schema {
        let name = |check, what: &str| Attribute::string().required().requires_replace().validate(check).describe(what);
        let schema = Schema::new(
            "Gives the pods of a service account a role by EKS Pod Identity. `karp_controller_role` makes its own association; this one is \
             for roles that are made elsewhere. It waits until EKS knows a role that was created a moment ago.",
        );
        let schema = inherit::region(inherit::adopt(inherit::tags(schema)));
        inherit::id_and_arn(schema, "`cluster_name,association_id`.")
            .identity(identity::of_association())
            .attribute(
                "association_id",
                Attribute::string().computed().use_state_for_unknown().describe("The association's id."),
            )
            .attribute("cluster_name", inherit::cluster_name_attribute().requires_replace())
            .attribute("namespace", name(validate::dns_label(), "The namespace of the service account."))
            .attribute("service_account", name(validate::dns_subdomain(), "The service account."))
            .attribute(
                "role_arn",
                Attribute::string()
                    .required()
                    .validate(validate::role_arn())
                    .describe("The role; a change points the association at it."),
            )
            .timeouts(Timeouts::default())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        inherit::plan_region(&session, change).await;
        inherit::plan_cluster_member(&session, change, &["id", "arn", "association_id"])
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let aws = &session.aws_of(&planned).await?;
        let model = resolve(&session, &planned)?;
        let adopt = model.adopt.unwrap_or(session.model().adopt_existing);
        let (mark, wanted) = (Mark::new(), model.tags_all.clone().unwrap_or_default());
        let existing = pod_identity::find(aws, &model.subject()).await?;
        let origin = match &existing {
            Some(found) if mark.resumed(&found.tags, &wanted).is_none() => Origin::Adopted,
            _ => Origin::Made,
        };
        if let Some(found) = existing
            && origin == Origin::Adopted
            && !adopt
        {
            return Err(pod_identity::taken(&model.subject(), model.role_arn(), &found).into());
        }
        let tags = if origin == Origin::Made { mark.on(&wanted) } else { wanted };
        let association = model.ensure(aws, ctx, &tags, &Tags::new()).await?;
        session.answered(aws).made(origin, Marked::Eks(association.arn.clone()));
        Ok(tfplugin::to_value(&model.associated(association))?)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&state)?;
        let look = async {
            let aws = &session.aws_of(&state).await?;
            let found = match &model.association_id {
                // an import knows the id alone
                Some(id) if model.namespace.is_none() => {
                    pod_identity::find_by_id(aws, model.subject().cluster, id).await?
                }
                known => pod_identity::look(aws, &model.subject(), known.as_deref()).await?.map(|found| {
                    (model.subject().namespace.to_owned(), model.subject().service_account.to_owned(), found)
                }),
            };
            let Some((namespace, service_account, found)) = found else { return Ok(None) };
            let id = format!("{},{}", model.subject().cluster, found.id);
            // Only an import takes the tags that it finds for its own; a state from before tags has none.
            let own = model.tags_all.clone().or_else(|| model.namespace.is_some().then(Tags::new));
            let tags = session.owned_part(&found.tags, own.as_ref());
            let state = state.clone().with("id", id).with("arn", found.arn).with("association_id", found.id);
            let state = state.with("namespace", namespace).with("service_account", service_account);
            let state = state.with("role_arn", found.role_arn).with("tags_all", tags);
            Ok(Some(session.recover(state, &found.tags, own.as_ref())))
        };
        session.refresh(ctx, &[Part::Aws], &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let model = resolve(&session, &planned)?;
        let aws = &session.aws_of(&prior).await?;
        let tags = model.tags_all.clone().unwrap_or_default();
        let association = model.ensure(aws, ctx, &tags, &session.owned(&prior)).await?;
        Ok(tfplugin::to_value(&model.associated(association))?)
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(&prior)?;
        let id = model.association_id.as_deref().unwrap_or_default();
        let aws = &session.aws_of(&prior).await?;
        let (subject, role) = (model.subject(), model.role_arn());
        let doing = format!("delete the pod identity association of {subject}");
        Ok(settle(ctx, &doing, || pod_identity::release(aws, &subject, id, role)).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let (id, region) = inherit::id_and_region(id);
        match id.split_once(',') {
            Some((cluster, association)) if !cluster.is_empty() && association.starts_with("a-") => {
                Ok(bare(cluster, association).with("region", region))
            }
            _ => {
                let detail = "Write `cluster_name,association_id`, or `cluster_name,association_id@REGION`.";
                Err(Diagnostic::error("The import id is malformed", detail).into())
            }
        }
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        moved::from_aws(source, "aws_eks_pod_identity_association", |old| {
            let bare = bare(old.text("cluster_name")?, old.text("association_id")?);
            Ok(old.tagged(bare.with("region", old.region())))
        })
    }
}

/// Gives the state with which an import begins.
fn bare(cluster: &str, association: &str) -> Value {
    let id = format!("{cluster},{association}");
    Value::object([("id", id.as_str()), ("cluster_name", cluster), ("association_id", association)])
}

fn resolve(session: &Session, planned: &Value) -> Result<Model, Diagnostics> {
    let mut model: Model = tfplugin::from_value(planned)?;
    let tags = session.tags_all(planned.get("tags"), planned.get("cluster_name"));
    model.tags_all = Some(tfplugin::from_value(&tags)?);
    Ok(model)
}
