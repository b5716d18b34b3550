//! Server-side apply: the caller owns the fields that it sends, and no others.

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use serde_json::{Value as Json, json};

use crate::Error;
use crate::ownership::{self, Claim};

/// A controller writes its status at any time; one that is in between more often than this is told of.
const CLAIM_ATTEMPTS: usize = 8;

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
pub async fn json(client: &Client, manager: Manager, plural: &str, object: &Json) -> Result<DynamicObject, Error> {
    let api = dynamic(client, plural, object);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Ok(api.patch(name, &manager.params(), &Patch::Apply(object)).await?)
}

/// Makes what an apply of `after` has to take away the manager's own: the fields that `before` has and `after` has not, where they are live, and
/// items of lists that `after` does not list. An apply alone leaves those that another manager owns too. One that forces also becomes the only
/// owner of what `after` sets. Without `before` an object is met for the first time; later, whoever adds items to its lists is only stopped by force.
///
/// # Errors
/// [`Error::FieldConflict`] where others own what would be taken away and the manager does not force.
pub async fn claim(
    client: &Client,
    manager: Manager,
    plural: &str,
    before: Option<&Json>,
    after: &Json,
) -> Result<(), Error> {
    if manager.force == Force::No && before == Some(after) {
        return Ok(());
    }
    let api = dynamic(client, plural, after);
    let name = after["metadata"]["name"].as_str().unwrap_or_default();
    let version = after["apiVersion"].as_str().unwrap_or_default();
    let params = PatchParams { field_manager: Some(manager.name.to_owned()), ..PatchParams::default() };
    let mut stale = String::new();
    for _ in 0..CLAIM_ATTEMPTS {
        let live = match api.get_opt(name).await.map_err(Error::from) {
            Ok(Some(live)) => live,
            Ok(None) | Err(Error::UnknownKind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let owned = live.metadata.managed_fields.as_deref().unwrap_or_default();
        let shape = ownership::shape(owned);
        let gone = match (manager.force, before) {
            (Force::No, Some(before)) => ownership::dropped(before, Some(after), &json!(live), &shape),
            _ => ownership::gone(before.unwrap_or(after), after, &json!(live), &shape),
        };
        let entries = match ownership::claim(owned, manager, version, &gone, &ownership::set(after, &shape)) {
            Claim::Settled => return Ok(()),
            Claim::Refused(conflicts) => {
                return Err(Error::FieldConflict { conflicts, message: "they would be taken away".to_owned() });
            }
            Claim::Entries(entries) => entries,
        };
        let read = live.metadata.resource_version;
        let patch = json!({ "metadata": { "resourceVersion": read, "managedFields": entries } });
        match api.patch(name, &params, &Patch::Merge(patch)).await.map_err(Error::from) {
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(()),
            Err(Error::Stale { message }) => stale = message,
            Err(error) => return Err(error),
        }
    }
    Err(Error::Stale { message: stale })
}

/// Returns the API of an object given as JSON: namespaced where its metadata names a namespace.
#[must_use]
pub fn dynamic(client: &Client, plural: &str, object: &Json) -> Api<DynamicObject> {
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
