//! Stamps `status.lastPodEventTime` of claims: when a pod last came to the node or left it. Consolidation waits on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karp_domain::api::NodeClaim;
use karp_domain::cluster::Owner;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::observe::Change;

/// Stamps of one claim are at least this far apart; the last event of a burst always is written.
const QUIET: Duration = Duration::from_secs(5);
/// How often waiting stamps are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Stamps claims until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    let mut stamps = Stamps::default();
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            change = changes.recv() => match change {
                Ok(Change::Pod { key, node: Some(node), moved: true, .. }) => {
                    // Daemon pods come and go with their node: they make it neither busy nor quiet.
                    let daemon = context.stores.pods.get(&key).is_some_and(|pod| pod.owner == Owner::DaemonSet);
                    if !daemon {
                        stamps.note(node, Timestamp::now());
                    }
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            _ = tick.tick() => {
                for (node, at) in stamps.ripe(Instant::now()) {
                    stamp(&context, &node, at).await;
                }
            }
        }
    }
}

async fn stamp(context: &Context, node: &str, at: Timestamp) {
    let on_it = |claim: &NodeClaim| claim.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(node);
    let Some(claim) = context.stores.claims.find(on_it) else { return };
    let claims: Api<NodeClaim> = Api::all(context.client.clone());
    let patch = json!({ "metadata": { "uid": claim.uid() }, "status": { "lastPodEventTime": format!("{at:.0}") } });
    if let Err(error) = claims.patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        tracing::debug!(NodeClaim.name = claim.name_any(), %error, "could not stamp the last pod event");
    }
}

/// Gathers events by node.
#[derive(Default)]
struct Stamps {
    waiting: HashMap<Arc<str>, Timestamp>,
    written: HashMap<Arc<str>, Instant>,
}

impl Stamps {
    fn note(&mut self, node: Arc<str>, at: Timestamp) {
        self.waiting.insert(node, at);
    }

    /// Takes the stamps that may be written now.
    fn ripe(&mut self, now: Instant) -> Vec<(Arc<str>, Timestamp)> {
        self.written.retain(|_, at| now.duration_since(*at) < QUIET);
        let written = &self.written;
        let ripe: Vec<_> = self.waiting.extract_if(|node, _| !written.contains_key(node)).collect();
        self.written.extend(ripe.iter().map(|(node, _)| (node.clone(), now)));
        ripe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_at_once_and_its_end_after_the_quiet_time() {
        let (mut stamps, start) = (Stamps::default(), Instant::now());
        let at = |second| Timestamp::from_second(second).expect("a time");
        stamps.note("n".into(), at(1));
        assert_eq!(stamps.ripe(start).len(), 1);
        stamps.note("n".into(), at(2));
        stamps.note("n".into(), at(3));
        assert!(stamps.ripe(start + Duration::from_secs(1)).is_empty());
        assert_eq!(stamps.ripe(start + QUIET), [("n".into(), at(3))]);
        assert!(stamps.ripe(start + 3 * QUIET).is_empty());
    }
}
