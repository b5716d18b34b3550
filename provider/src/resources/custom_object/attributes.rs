//! The attributes that resources of custom objects have beside their spec.

use tfplugin::schema::validate;
use tfplugin::{Attribute, Schema, Value};

use super::metadata;
use crate::manifests::spec::Attributes;
use crate::resources::identity;

/// Attributes that are the resource's own and not of the object's spec.
const OWN: [&str; 12] = [
    "hash",
    "id",
    "name",
    "node_count",
    "resources_in_use",
    "status",
    "adopt",
    "force_conflicts",
    "wait_for_ready",
    "drain_on_destroy",
    "teardown",
    "timeouts",
];

/// Gives the attributes that belong to the spec.
pub(super) fn spec_attributes(schema: &Schema) -> Attributes {
    let is_spec = |name: &str| !OWN.contains(&name) && !metadata::ALL.contains(&name);
    schema.attributes.iter().filter(|(name, _)| is_spec(name)).map(|(n, a)| (n.clone(), a.clone())).collect()
}

/// Declares the identity of an object, which is its name.
pub fn named(schema: Schema, what: &str) -> Schema {
    let name = Attribute::string().required().requires_replace().validate(validate::dns_subdomain());
    schema
        .identity(identity::of_object())
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe(format!("The {what}'s name.")))
        .attribute("name", name.describe(format!("The {what}'s name.")))
}

/// Gives the state with which an import begins.
pub fn bare(name: &str, wait_for_ready: bool) -> Value {
    Value::object([("id", name), ("name", name)]).with("wait_for_ready", wait_for_ready)
}

/// Declares whether an apply waits for the controller's word.
pub fn wait_for_ready() -> Attribute {
    Attribute::bool().default(true).describe(
        "Wait, for at most two minutes and within `timeouts`, until the controller says that the object is ready. One that does not \
         become so is a warning: it is applied, and the controller goes on with it.",
    )
}

/// Declares who ends what is left where no controller runs.
pub fn teardown() -> Attribute {
    Attribute::string().optional().describe(
        "The `id` of the cluster's `karp_teardown`. Where no controller is at work at destroy, what only a controller can end is left to \
         it with a warning, instead of an error; it also puts the two in order.",
    )
}

/// Declares whether an existing object is taken over.
pub fn adopt(kind: &str) -> Attribute {
    Attribute::bool().optional().describe(format!(
        "Take over a {kind} of this name that exists already instead of failing; the provider block's `adopt_existing` when left out."
    ))
}

/// Declares whether fields of other managers are taken over.
pub fn force_conflicts() -> Attribute {
    Attribute::bool().optional().describe(
        "Take over fields that another field manager (kubectl, Helm) owns, instead of an error that names it.",
    )
}
