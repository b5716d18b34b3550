//! `node_pool_hash`, `node_pool_from_provisioner` and `node_class_from_template`: manifests as karp's resources take them.

use std::sync::Arc;

use karp_domain::api::legacy::{self, ClassInputs, Converted, Refusal};
use karp_domain::api::lint::{self, Finding};
use karp_domain::api::{NodePoolSpec, hash};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tfplugin::{Function, FunctionError, Resource, Signature, Type, Value};

use crate::manifests::spec::{self, Attributes, Scope};
use crate::resources::node_class::NodeClass;
use crate::resources::node_pool::NodePool;

/// Arguments of the resources that say how Terraform works on the object, not what the object is.
const NOT_OF_THE_SPEC: [&str; 9] = [
    "id",
    "name",
    "adopt",
    "force_conflicts",
    "wait_for_ready",
    "timeouts",
    "drain_on_destroy",
    "drain_timeout",
    "hash",
];

/// The hash by which drift of a pool's nodes is found.
pub struct NodePoolHash;

impl Function for NodePoolHash {
    fn name(&self) -> &'static str {
        "node_pool_hash"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::String, "Gives the hash of what makes a pool's nodes drift when it changes.")
            .describe(
                "The value of the annotation `karpenter.sh/nodepool-hash`, by the controller's own algorithm: labels, annotations, taints, \
                 class, grace period and lifetime of the template. Equal hashes mean that no node drifts.",
            )
            .parameter("manifest", Type::Dynamic, "A NodePool (v1) as an object, as `yamldecode` gives it.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let manifest = super::manifest(arguments, 0)?;
        let spec: NodePoolSpec = serde_json::from_value(manifest["spec"].clone())
            .map_err(|error| FunctionError::new(format!("spec: {error}")).argument(0))?;
        Ok(Value::from(hash::node_pool(&spec)))
    }
}

fn refused(refusals: &[Refusal]) -> FunctionError {
    let lines: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    FunctionError::new(lines.join("\n")).argument(0)
}

/// The attributes of a resource that are the object's.
fn of_spec(resource: &dyn Resource) -> Attributes {
    let attributes = resource.schema().attributes.into_iter();
    let computed_only = |attribute: &tfplugin::Attribute| attribute.mode == tfplugin::schema::Mode::Computed;
    attributes
        .filter(|(name, attribute)| !NOT_OF_THE_SPEC.contains(&name.as_str()) && !computed_only(attribute))
        .collect()
}

fn answer_type(attributes: &Attributes) -> Type {
    let own = attributes.iter().map(|(name, attribute)| (name.clone(), attribute.value_type()));
    Type::object(own.chain([("name".to_owned(), Type::String), ("notes".to_owned(), Type::list(Type::String))]))
}

/// Writes what a conversion came to as arguments of a resource. What a plan would doubt of the object is told beside what changed.
fn answer<T: Serialize>(
    attributes: &Attributes,
    converted: Converted<T>,
    doubts: fn(&Json) -> Vec<Finding>,
    reshape: impl FnOnce(Json) -> Json,
) -> Result<Value, FunctionError> {
    let mut object = serde_json::to_value(converted.object).map_err(|error| FunctionError::new(error.to_string()))?;
    let name = object["metadata"]["name"].as_str().map_or(Value::Null, Value::from);
    let doubted = lint::name(&object).into_iter().chain(doubts(&object)).map(|finding| finding.sentence());
    let notes: Vec<Value> = converted.notes.into_iter().chain(doubted).map(Value::from).collect();
    let fields = reshape(object["spec"].take());
    let value = spec::attributes(attributes, &Value::Null, &fields, Scope::All);
    Ok(value.with("name", name).with("notes", Value::List(notes)))
}

/// An older pool as `karp_node_pool` takes it.
pub struct NodePoolFromProvisioner;

impl NodePoolFromProvisioner {
    fn attributes() -> Attributes {
        of_spec(&NodePool::new(&Arc::default()))
    }
}

impl Function for NodePoolFromProvisioner {
    fn name(&self) -> &'static str {
        "node_pool_from_provisioner"
    }

    fn signature(&self) -> Signature {
        Signature::new(answer_type(&Self::attributes()), "Converts a Provisioner, or an older NodePool, for `karp_node_pool`.")
            .describe(
                "Takes a Provisioner (`karpenter.sh/v1alpha5`) or a NodePool (`karpenter.sh/v1beta1`, `v1`) and gives an object with the \
                 arguments of `karp_node_pool`, `name` and `notes`. What the old API did by default is written out where today's default \
                 differs, and told in `notes`. A field without counterpart is an error that says what to do.",
            )
            .parameter("manifest", Type::Dynamic, "The manifest as an object, as `yamldecode` gives it.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let converted = legacy::node_pool(&super::manifest(arguments, 0)?).map_err(|refusals| refused(&refusals))?;
        answer(&Self::attributes(), converted, lint::node_pool, flat_template)
    }
}

/// The resource has one `template` where the API has its metadata and its spec.
fn flat_template(mut fields: Json) -> Json {
    let mut template = fields["template"]["spec"].take();
    for name in ["labels", "annotations"] {
        let value = fields["template"]["metadata"][name].take();
        if !value.is_null() {
            template[name] = value;
        }
    }
    fields["template"] = template;
    fields
}

/// An older class as `karp_node_class` takes it.
pub struct NodeClassFromTemplate;

impl NodeClassFromTemplate {
    fn attributes() -> Attributes {
        of_spec(&NodeClass::new(&Arc::default()))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Inputs {
    name: Option<String>,
    role: Option<String>,
    instance_profile: Option<String>,
    provisioner: Option<Json>,
}

impl Function for NodeClassFromTemplate {
    fn name(&self) -> &'static str {
        "node_class_from_template"
    }

    fn signature(&self) -> Signature {
        Signature::new(answer_type(&Self::attributes()), "Converts an AWSNodeTemplate, or an older EC2NodeClass, for `karp_node_class`.")
            .describe(
                "Takes an AWSNodeTemplate (`karpenter.k8s.aws/v1alpha1`), a Provisioner (`karpenter.sh/v1alpha5`) with an inline `provider`, or \
                 an EC2NodeClass (`karpenter.k8s.aws/v1beta1`, `v1`) and gives an object with the arguments of `karp_node_class`, `name` and \
                 `notes`.",
            )
            .parameter("manifest", Type::Dynamic, "The manifest as an object, as `yamldecode` gives it.")
            .nullable(
                "inputs",
                Type::Dynamic,
                "An object of what the manifest leaves to Karpenter's settings, `{}` where there is nothing: `role` (the nodes' role; comes before any profile), \
                 `instance_profile` (`aws.defaultInstanceProfile` of the old settings), `name`, and `provisioner` (the Provisioner or NodePool \
                 manifest whose kubelet settings move into the class).",
            )
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let given = arguments.get(1).unwrap_or(&Value::Null);
        let inputs: Inputs = if given.is_null() { Inputs::default() } else { super::object(arguments, 1)? };
        let manifest = super::manifest(arguments, 0)?;
        let kubelet = legacy::kubelet(inputs.provisioner.as_ref().unwrap_or(&manifest));
        let inputs = ClassInputs {
            name: inputs.name,
            role: inputs.role,
            instance_profile: inputs.instance_profile,
            kubelet: kubelet.map_err(|refusals| refused(&refusals))?,
        };
        let converted = legacy::node_class(&manifest, &inputs).map_err(|refusals| refused(&refusals))?;
        answer(&Self::attributes(), converted, lint::node_class, |fields| fields)
    }
}
