//! Static pools: NodeClaims are made and taken back so that there are as many as `spec.replicas` says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karp_domain::disruption::replaced;
use karp_domain::scheduling::replicas;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, provisioning};
use crate::effect::Outcome;
use crate::ops::telemetry::reconcile_id;

/// How often static pools are looked at (Karpenter: on events, and every 30 s at a limit).
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Keeps static pools at their size until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut told = BTreeSet::new();
    loop {
        let is_static = context.stores.pools.state_filter(|pool| pool.spec.replicas.is_some());
        if !is_static.is_empty() {
            let span = tracing::info_span!("reconcile", controller = "static", reconcileID = reconcile_id());
            told = pass(&context, told).instrument(span).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Makes and deletes claims once; answers what keeps pools short, each told when it is new.
async fn pass(context: &Context, told: BTreeSet<String>) -> BTreeSet<String> {
    let _planning = context.planning.lock().await;
    let snapshot = context.snapshot().await;
    let plan = block_in_place(|| replicas(&snapshot, &replaced(&snapshot)));
    provisioning::create_admitted(context, &snapshot, &plan.create).await;
    for name in &plan.delete {
        let Some(claim) = snapshot.claims.iter().find(|claim| claim.name == *name) else { continue };
        match context.delete_claim(name, &claim.uid).await {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Done) => {
                tracing::info!(NodeClaim.name = %name, reason = "overprovisioned", "deleting nodeclaim");
            }
            Err(error) => tracing::error!(NodeClaim.name = %name, %error, "deleting nodeclaim"),
        }
    }
    let short: BTreeSet<String> = plan.short.iter().map(|(pool, misfit)| format!("{pool}: {misfit}")).collect();
    for why in short.difference(&told) {
        tracing::warn!(why, "a static pool has fewer nodes than replicas");
    }
    short
}
