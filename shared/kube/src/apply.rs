//! Server-side apply: the caller owns the fields that it sends, and no others.

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;

use crate::Error;

/// What to do where another manager owns a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Report the manager and the field.
    No,
    /// Take the field over.
    Yes,
}

/// As whom, and how firmly, fields are applied.
#[derive(Clone, Copy, Debug)]
pub struct Manager {
    pub name: &'static str,
    pub force: Force,
}

impl Manager {
    fn params(self) -> PatchParams {
        let params = PatchParams::apply(self.name);
        if self.force == Force::Yes { params.force() } else { params }
    }
}

/// Applies an object of any kind, given as JSON with `apiVersion`, `kind` and `metadata`; `plural` is its path, such as `deployments`.
pub async fn json(
    client: &Client,
    manager: Manager,
    plural: &str,
    object: &serde_json::Value,
) -> Result<DynamicObject, Error> {
    let api = dynamic(client, plural, object);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Ok(api.patch(name, &manager.params(), &Patch::Apply(object)).await?)
}

/// Returns the API of an object given as JSON: namespaced where its metadata names a namespace.
#[must_use]
pub fn dynamic(client: &Client, plural: &str, object: &serde_json::Value) -> Api<DynamicObject> {
    let (group, version) = object["apiVersion"].as_str().unwrap_or_default().split_once('/').unwrap_or_else(|| {
        // The core group has no name.
        ("", object["apiVersion"].as_str().unwrap_or_default())
    });
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap_or_default());
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}
