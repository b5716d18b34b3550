//! What a plan foresees of an object's nodes, whatever its kind.

use std::future::Future;

use tfplugin::{Context, Diagnostic, PlannedChange};

use super::{CustomObject, failure, needs};
use crate::preview::{self, Ending, Nodes, Replaced};
use crate::report::{Failure, Kind};

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

impl CustomObject {
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
