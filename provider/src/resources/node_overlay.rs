//! `karp_node_overlay`: a NodeOverlay, which corrects prices and resources of instance types.

use std::sync::Arc;

use karp_domain::api::{lint, validate as rules};
use serde_json::{Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait,
};

use super::custom_object::{CustomKind, CustomObject, adopt, force_conflicts, metadata, named};
use super::node_pool_schema::{same_amounts, selecting_requirements};
use super::{custom_object, moved};
use crate::provider::Handle;

const KIND: CustomKind = CustomKind {
    api_version: "karpenter.sh/v1alpha1",
    kind: "NodeOverlay",
    plural: "nodeoverlays",
    crd: "nodeoverlays.karpenter.sh",
    defaults: || json!({}),
    validate: |object| rules::node_overlay(object),
    lint: lint::node_overlay,
    to_spec: |fields| fields,
    from_spec: |spec: &Json, _prior: &Value| spec.clone(),
    observed: |_| Vec::new(),
    locate: |path| path.strip_prefix("spec").unwrap_or(path).trim_start_matches('.').to_owned(),
};

/// A node overlay.
pub struct NodeOverlay(CustomObject);

impl NodeOverlay {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self(CustomObject::new(KIND, handle, &schema()))
    }
}

fn schema() -> Schema {
    let text = |what: &str| Attribute::string().optional().describe(what);
    metadata(named(
Schema::new(
        "A NodeOverlay: it corrects what the controller knows of instance types, their price and their extended resources. It is \
         checked at plan by the API's own rules, without a cluster. The API is alpha: the controller heeds overlays \
         where `feature_gates` of `karp_controller` turn `NodeOverlay` on.",
    )
    .timeouts(Timeouts::default()),
"overlay"), "`kubernetes.io/description`")
    .attribute("requirements", selecting_requirements().required().describe("Which instance types and offerings are corrected."))
    .attribute("price", text("The price per hour in place of the known one, such as `0.42`."))
    .attribute("price_adjustment", text("What is added to the price or taken off it: `+0.1`, `-0.05`, `+10%` or `-5%`."))
    .attribute(
        "capacity",
        Attribute::map(Type::String).optional().semantic_eq(same_amounts).describe(
            "Extended resources that the types have besides what is known, such as `{ \"smarter-devices/fuse\" = \"1\" }`.",
        ),
    )
    .attribute(
        "weight",
        Attribute::number().optional().validate(validate::whole(1, 10_000)).describe("Where overlays meet, the higher weight holds."),
    )
    .attribute(
        "wait_for_ready",
        Attribute::bool().default(false).describe(
            "Wait, for at most two minutes, until the controller says that the overlay is ready. Without its feature gate it never says so.",
        ),
    )
    .attribute("adopt", adopt("NodeOverlay"))
    .attribute("force_conflicts", force_conflicts())
}

#[async_trait]
impl Resource for NodeOverlay {
    fn type_name(&self) -> &'static str {
        "karp_node_overlay"
    }

    fn schema(&self) -> Schema {
        schema()
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        self.0.check(config)
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        CustomKind::plan_id(change)
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.0.create(ctx, planned).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        self.0.read(ctx, state, "requirements").await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.0.update(ctx, &prior, planned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        Ok(self.0.delete(ctx, &prior, custom_object::STAYS).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(custom_object::bare(id, false))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        Ok(moved::object_name(source, &KIND, self.type_name())?.map(|name| custom_object::bare(&name, false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::coverage;
    use crate::manifests::spec::Scope;

    fn overlay() -> NodeOverlay {
        NodeOverlay::new(&Arc::default())
    }

    fn config() -> Value {
        Value::from(json!({
            "name": "reserved",
            "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"] }],
            "price_adjustment": "-30%",
            "weight": 10
        }))
    }

    #[test]
    fn every_field_of_the_api_is_a_typed_attribute_and_returns() {
        assert_eq!(coverage::differences(&coverage::spec_schema(KIND.crd), overlay().0.spec()), Vec::<String>::new());
        let full = coverage::sample(overlay().0.spec()).with("name", "full");
        let object = KIND.object(overlay().0.spec(), &full, &mut Vec::new());
        let live: kube::core::DynamicObject = serde_json::from_value(object).expect("an object");
        assert_eq!(KIND.state(overlay().0.spec(), &Value::object([("name", "full")]), &live, Scope::All), full);
    }

    #[test]
    fn what_the_api_would_refuse_is_shown_at_its_attribute() {
        assert!(overlay().validate(&config()).is_empty(), "{}", overlay().validate(&config()));
        let refused = |config: Value, at: &str| {
            let found = overlay().validate(&config);
            let paths: Vec<String> = found.iter().map(|d| d.path.to_string()).collect();
            assert_eq!(paths, [at], "{found}");
        };
        refused(config().with("price_adjustment", "cheap"), "price_adjustment");
        refused(config().with("price", "1.0"), "");
        refused(config().with("capacity", Value::object([("cpu", "4")])), "capacity");
    }
}
