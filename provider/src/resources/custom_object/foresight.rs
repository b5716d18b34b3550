//! What a plan foresees of an object's nodes, whatever its kind.

use std::future::Future;

use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tfplugin::{Context, Diagnostic, PlannedChange, Value};

use super::{CustomObject, failure, needs};
use crate::manifests::spec::Scope;
use crate::manifests::{FIELD_MANAGER, owned};
use crate::preview::{self, Ending, Nodes, Replaced};
use crate::report::{Failure, Kind};
use crate::session::Session;

/// Waits for a look at the cluster as long as a plan may; nothing while the cluster is not known.
pub async fn seen<T>(look: impl Future<Output = Result<T, Failure>>) -> Option<Result<T, String>> {
    match tokio::time::timeout(preview::PATIENCE, look).await {
        Ok(Ok(seen)) => Some(Ok(seen)),
        Ok(Err(failure)) if failure.kind == Kind::NotYetKnown => None,
        Ok(Err(failure)) => Some(Err(failure.to_string())),
        Err(_) => Some(Err(preview::TOO_LONG.to_owned())),
    }
}

/// The name that an object will have, or a word for one that is not known.
pub fn name_of(change: &PlannedChange) -> &str {
    change.planned.get("name").as_str().unwrap_or("(known after apply)")
}

/// Says whether what is planned takes over an object that exists already.
pub(super) fn adopts(session: &Session, planned: &Value) -> bool {
    planned.get("adopt").as_bool().unwrap_or(session.model().adopt_existing)
}

impl CustomObject {
    /// Says whether a change is a creation that may take over what is there.
    pub fn adopts(&self, change: &PlannedChange) -> bool {
        change.is_create() && adopts(&self.session(), &change.planned) && change.planned.get("name").is_known()
    }

    /// Looks up the object that a creation takes over, with the client to look further; nothing where none is there, as in a cluster that has yet
    /// to be made.
    pub async fn adopted(&self, ctx: &Context, planned: &Value) -> Result<Option<(Client, DynamicObject)>, Failure> {
        let client = match self.session().kube_ahead(ctx).await {
            Err(failure) if failure.kind == Kind::NoCluster => return Ok(None),
            client => client?,
        };
        let live = self.kind.find(&client, planned.get("name").as_str().unwrap_or_default()).await?;
        let live = live.filter(|live| live.metadata.deletion_timestamp.is_none());
        Ok(live.map(|live| (client, live)))
    }

    /// Reads an object that is taken over as it is, and as it will be when what is planned is applied to it. What the plan leaves open stays, but for
    /// what karp itself has applied before.
    pub fn taken_over<T: DeserializeOwned>(&self, live: &DynamicObject, planned: &Value) -> Result<[T; 2], Failure> {
        let doing = || format!("read {} {:?}", self.kind.kind, live.name_any());
        let unreadable = |error: serde_json::Error| Failure::new(Kind::Unexpected, doing(), error.to_string());
        let typed = |spec: &Json| {
            let (version, kind) = (self.kind.api_version, self.kind.kind);
            let object =
                json!({ "apiVersion": version, "kind": kind, "metadata": { "name": live.name_any() }, "spec": spec });
            serde_json::from_value(object).map_err(unreadable)
        };
        let before = serde_json::to_value(live).map_err(unreadable)?;
        let wanted = self.object(planned)["spec"].take();
        let mut known = self.object(&self.kind.state(&self.spec, planned, live, Scope::Known))["spec"].take();
        let applied = owned::by(&before, FIELD_MANAGER);
        if let Some(applied) = applied.as_ref().and_then(|applied| applied.get("spec")) {
            json_patch::merge(&mut known, applied);
        }
        let mut after = before["spec"].clone();
        if let Some(gone) = owned::difference(&known, &wanted) {
            json_patch::merge(&mut after, &gone);
        }
        // lists are replaced as they are, whatever their items have besides
        json_patch::merge(&mut after, &wanted);
        Ok([typed(&before["spec"])?, typed(&after)?])
    }

    /// Looks at the object that a change destroys so that another can take its place, and at its nodes, which have its name as this label, and of
    /// which so many leave at a time as `pace` says.
    pub async fn replaced(
        &self,
        ctx: &Context,
        change: &PlannedChange,
        label: &str,
        ending: Ending,
        pace: impl FnOnce(usize) -> Option<usize>,
    ) -> Replaced {
        let name = change.prior.get("name").as_str().unwrap_or_default().to_owned();
        let nodes = seen(async {
            let client = self.session().kube_ahead(ctx).await?;
            let looked = Nodes::glance(&client, &format!("{label}={name}"), pace).await;
            looked.map_err(|error| failure("look at its nodes", error))
        });
        let nodes = nodes.await;
        let because = change.requires_replace.iter().map(ToString::to_string).collect();
        Replaced { kind: self.kind.kind, name, because, ending, nodes }
    }

    /// Says that a change cannot be foreseen, by what is not known of the configuration; nothing while the cluster is not known either.
    pub fn not_known(&self, change: &PlannedChange) -> Option<Diagnostic> {
        let session = self.session();
        if needs(&session).iter().any(|part| session.model().unknown(*part).is_some()) {
            return None;
        }
        let unknown = change.config.as_map()?.iter().filter(|(_, value)| !value.whole_known());
        let unknown: Vec<String> = unknown.map(|(name, _)| name.clone()).collect();
        (!unknown.is_empty()).then(|| preview::unknown_warning(self.kind.kind, name_of(change), &unknown))
    }
}
