//! Karpenter's older APIs, read as today's: Provisioner (v1alpha5), AWSNodeTemplate (v1alpha1), and NodePool and EC2NodeClass v1beta1.
//!
//! A conversion keeps the meaning, not the text: what an older API did by default is written out where today's default differs. A
//! field that has no counterpart is refused with what to do about it, never dropped.

mod class;
mod fields;
mod pool;
mod selector;

use std::fmt;

use serde_json::Value;

use super::{Ec2NodeClass, KubeletConfiguration, NodePool};
use fields::Fields;

/// An object of today's API and what its owner should know.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted<T> {
    pub object: T,
    /// What was made explicit or behaves differently now, in plain sentences.
    pub notes: Vec<String>,
}

/// One thing that has no counterpart today.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Where in the old manifest, as `spec.provider.launchTemplate`.
    pub path: String,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for Refusal {}

/// What a node class needs and an old manifest may leave to Karpenter's global settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClassInputs {
    /// The name of the class, where the manifest has none of its own.
    pub name: Option<String>,
    /// The role of the nodes; comes before any instance profile.
    pub role: Option<String>,
    /// `aws.defaultInstanceProfile` of the old settings: used where the manifest names no profile.
    pub instance_profile: Option<String>,
    /// The kubelet's settings, which stood in Provisioner and NodePool once; [`kubelet`] reads them.
    pub kubelet: Option<KubeletConfiguration>,
}

/// Reads a Provisioner v1alpha5, or a NodePool v1beta1 or v1, as a NodePool.
///
/// # Errors
/// Everything in the manifest that cannot be converted, in the order of paths.
pub fn node_pool(manifest: &Value) -> Result<Converted<NodePool>, Vec<Refusal>> {
    let mut fields = Fields::root(manifest);
    let (version, kind) = fields.header();
    let read = match (kind.as_str(), version.as_str()) {
        ("Provisioner", "karpenter.sh/v1alpha5") => Some(pool::provisioner(&mut fields)),
        ("NodePool", "karpenter.sh/v1beta1") => Some(pool::beta(&mut fields)),
        ("NodePool", "karpenter.sh/v1") => fields.whole(super::validate::node_pool),
        _ => {
            fields.refuse(
                "kind",
                format!("{kind} of {version} is not a Provisioner (karpenter.sh/v1alpha5) or a NodePool (karpenter.sh/v1beta1 or v1)."),
            );
            None
        }
    };
    fields.finish(read, super::validate::node_pool)
}

/// Reads an AWSNodeTemplate v1alpha1, the inline `provider` of a Provisioner, or an EC2NodeClass v1beta1 or v1, as an EC2NodeClass.
///
/// # Errors
/// Everything in the manifest that cannot be converted, in the order of paths.
pub fn node_class(manifest: &Value, inputs: &ClassInputs) -> Result<Converted<Ec2NodeClass>, Vec<Refusal>> {
    let mut fields = Fields::root(manifest);
    let (version, kind) = fields.header();
    let read = match (kind.as_str(), version.as_str()) {
        ("AWSNodeTemplate", "karpenter.k8s.aws/v1alpha1") => Some(class::template(&mut fields, inputs)),
        ("Provisioner", "karpenter.sh/v1alpha5") => Some(class::inline(&mut fields, inputs)),
        ("EC2NodeClass", "karpenter.k8s.aws/v1beta1") => Some(class::beta(&mut fields, inputs)),
        ("EC2NodeClass", "karpenter.k8s.aws/v1") => fields.whole(super::validate::node_class),
        _ => {
            fields.refuse(
                "kind",
                format!(
                    "{kind} of {version} is not an AWSNodeTemplate (karpenter.k8s.aws/v1alpha1), a Provisioner with an inline provider or an \
                     EC2NodeClass (karpenter.k8s.aws/v1beta1 or v1)."
                ),
            );
            None
        }
    };
    fields.finish(read, super::validate::node_class)
}

/// Returns the kubelet's settings of a Provisioner or a NodePool v1beta1, which today belong to the node class.
///
/// # Errors
/// What is wrong with them.
pub fn kubelet(manifest: &Value) -> Result<Option<KubeletConfiguration>, Vec<Refusal>> {
    let old = ["/spec/kubeletConfiguration", "/spec/template/spec/kubelet"];
    let Some((path, found)) = old.iter().find_map(|path| Some((path, manifest.pointer(path)?))) else {
        return Ok(None);
    };
    let mut found = found.clone();
    if let Some(map) = found.as_object_mut() {
        // containerd is the only runtime by now
        map.remove("containerRuntime");
    }
    serde_json::from_value(found).map(Some).map_err(|error| {
        let path = path.trim_start_matches('/').replace('/', ".");
        vec![Refusal { path, message: error.to_string() }]
    })
}
