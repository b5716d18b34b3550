//! What disruption tells of nodes: why they stay, and what becomes of moves that would save something. All of it is told on the node and on
//! its claim, where users look.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::disruption::{Approval, Candidate, Cause, Command, DisruptionPlan, Invalid, KeepReason, Verdict};

use super::Context;
use crate::effect;
use crate::ops::events::Reason;
use crate::ops::metrics::{MoveLabels, ReasonLabels};

/// Tells why nodes stay, and counts those that do not have to.
pub fn report(context: &Context, plan: &DisruptionPlan) {
    context.metrics.kept.tell(&plan.verdicts);
    let mut eligible = 0;
    for (candidate, verdict) in &plan.verdicts {
        let Verdict::Keep(reason) = verdict else {
            eligible += 1;
            continue;
        };
        if let KeepReason::NotWorthIt { score_permille } = reason {
            judged(context, &candidate.pool, "rejected", Some(*score_permille));
        }
        if let Some((event, note)) = telling(reason) {
            tell(context, candidate, event, &note);
        }
    }
    context.metrics.eligible_nodes.get_or_create(&ReasonLabels::new("all")).set(eligible);
}

/// Tells of a move that would save something, before it rests.
pub fn found(context: &Context, command: &Command) {
    let note = format!("Consolidation candidate: {}", described(command));
    tell_all(context, command, Reason::ConsolidationCandidate, &note);
}

/// Tells that a move no longer holds after its rest, and why.
pub fn rejected(context: &Context, command: &Command, why: &Invalid) {
    if let Invalid::Kept { claim, reason: KeepReason::NotWorthIt { score_permille } } = why
        && let Some(candidate) = command.candidates.iter().find(|candidate| candidate.claim == *claim)
    {
        judged(context, &candidate.pool, "rejected", Some(*score_permille));
    }
    let note = format!("Consolidation rejected: {}, {why}", described(command));
    tell_all(context, command, Reason::ConsolidationRejected, &note);
}

/// Counts what a pool's policy said of a move, and how well it scored where the policy keeps scores (Balanced).
fn judged(context: &Context, pool: &str, decision: &str, score_permille: Option<u64>) {
    let policy = context.stores.pool(pool).map(|pool| format!("{:?}", pool.spec.disruption.consolidation_policy));
    let labels = MoveLabels::new(decision, pool, policy.unwrap_or_default());
    context.metrics.moves.get_or_create(&labels).inc();
    if let Some(score) = score_permille {
        context.metrics.move_scores.get_or_create(&labels).observe(score as f64 / 1000.0);
    }
}

/// Tells, of the candidates of pools with policy Balanced, that the move is worth it.
pub fn approved(context: &Context, command: &Command, approvals: &[Approval]) {
    if command.cause == Cause::Underutilized {
        let pools: BTreeSet<&Arc<str>> = command.candidates.iter().map(|candidate| &candidate.pool).collect();
        for pool in pools {
            let approval = approvals.iter().find(|approval| approval.pool == *pool);
            judged(context, pool, "approved", approval.map(|approval| approval.score_permille));
        }
    }
    for candidate in &command.candidates {
        if let Some(approval) = approvals.iter().find(|approval| approval.pool == candidate.pool) {
            let note = format!("Consolidation approved: {}, {approval}", described(command));
            tell(context, candidate, Reason::ConsolidationApproved, &note);
        }
    }
}

/// Describes a move, the same way as long as it is the same move at the same prices.
fn described(command: &Command) -> String {
    let nodes = command.candidates.len();
    let done = match command.replacements.len() {
        0 => format!("delete {nodes} node(s)"),
        new => format!("replace {nodes} node(s) by {new}"),
    };
    format!("{done} ({}, saves {})", command.cause, command.saving())
}

fn tell_all(context: &Context, command: &Command, event: Reason, note: &str) {
    for candidate in &command.candidates {
        tell(context, candidate, event, note);
    }
}

/// Tells something of a candidate, on its claim and on its node.
pub fn tell(context: &Context, candidate: &Candidate, event: Reason, note: &str) {
    if let Some(claim) = context.stores.claim(&candidate.claim) {
        context.events.publish(&effect::reference(&*claim), event, note);
    }
    if let Some(node) = candidate.node.as_ref().and_then(|node| context.stores.node(node)) {
        context.events.publish(&effect::reference(&*node), event, note);
    }
}

/// Returns the event that tells a reason to keep a node; none for what is plain or passes by itself.
fn telling(reason: &KeepReason) -> Option<(Reason, String)> {
    match reason {
        KeepReason::TooManyUnhealthy { .. } => Some((Reason::NodeRepairBlocked, reason.to_string())),
        KeepReason::NoPool
        | KeepReason::PoolPaused { .. }
        | KeepReason::NodeProtected
        | KeepReason::PodUnreadable { .. }
        | KeepReason::PodProtected { .. }
        | KeepReason::PodBudget { .. }
        | KeepReason::NoSuccessor { .. }
        | KeepReason::BudgetExhausted { .. } => {
            Some((Reason::DisruptionBlocked, format!("Cannot disrupt Node: {reason}")))
        }
        KeepReason::ConsolidationOff
        | KeepReason::NotEmpty
        | KeepReason::UnknownPrice
        | KeepReason::PodWouldNotFit { .. }
        | KeepReason::SeveralNodesNeeded { .. }
        | KeepReason::NoCheaperOffering { .. }
        | KeepReason::TooLittleSaved { .. }
        | KeepReason::LocalVolume { .. }
        | KeepReason::SpotToSpotOff
        | KeepReason::TooFewSpotTypes { .. }
        | KeepReason::CameBack { .. }
        | KeepReason::NotWorthIt { .. } => {
            Some((Reason::Unconsolidatable, format!("Cannot consolidate Node: {reason}")))
        }
        // what a node that is not initialized waits for is told on its claim
        KeepReason::Leaving
        | KeepReason::NotInitialized
        | KeepReason::Static
        | KeepReason::Nominated { .. }
        | KeepReason::Settling { .. }
        | KeepReason::PodsArriving { .. }
        | KeepReason::AfterAnother
        | KeepReason::Fine => None,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karp_domain::api::labels;
    use karp_domain::catalogue::Price;
    use karp_domain::cluster::{PodKey, Reason as Budgeted};
    use karp_domain::lifecycle::Ward;
    use karp_domain::scheduling::Misfit;
    use serde_json::json;

    use super::super::testing::Server;
    use super::*;
    use crate::ops::kept::word;

    #[test]
    fn reasons_that_last_are_told_and_those_that_pass_are_not() {
        let price = Price::from_micro_dollars;
        let dear = KeepReason::NoCheaperOffering { price: price(100_000), cheapest: price(99_000) };
        let (event, note) = telling(&dear).expect("told");
        assert_eq!(event, Reason::Unconsolidatable);
        assert!(note.starts_with("Cannot consolidate Node: no cheaper node would do"), "{note}");
        let until = Timestamp::UNIX_EPOCH;
        let settling = KeepReason::Settling { until };
        for passes in [settling, KeepReason::NotInitialized, KeepReason::Static, KeepReason::Fine] {
            assert_eq!(telling(&passes), None, "{passes}");
        }
        let paused = KeepReason::PoolPaused { pool: "p".into(), until };
        for (lasts, told) in [
            (KeepReason::NodeProtected, Reason::DisruptionBlocked),
            (KeepReason::NoPool, Reason::DisruptionBlocked),
            (paused, Reason::DisruptionBlocked),
            (KeepReason::ConsolidationOff, Reason::Unconsolidatable),
            (KeepReason::NotEmpty, Reason::Unconsolidatable),
        ] {
            assert_eq!(telling(&lasts).map(|told| told.0), Some(told), "{lasts}");
        }
    }

    #[test]
    fn each_reason_to_keep_a_node_has_its_event_and_its_word() {
        let (pod, other) = (|| PodKey::new("default", "web"), || PodKey::new("default", "other"));
        let pool: Arc<str> = "p".into();
        let (until, price) = (Timestamp::UNIX_EPOCH, Price::from_micro_dollars(1));
        let misfit = Box::new(Misfit::PoolDeleting);
        let (blocked, dear) = (Some(Reason::DisruptionBlocked), Some(Reason::Unconsolidatable));
        let all = [
            (KeepReason::Leaving, None, "leaving"),
            (KeepReason::NotInitialized, None, "not_initialized"),
            (KeepReason::NoPool, blocked, "no_pool"),
            (KeepReason::Static, None, "static"),
            (KeepReason::NoSuccessor { pool: pool.clone(), misfit }, blocked, "no_successor"),
            (
                KeepReason::TooManyUnhealthy { pool: None, ward: Ward { nodes: 3, ill: 2 } },
                Some(Reason::NodeRepairBlocked),
                "too_many_unhealthy",
            ),
            (KeepReason::NodeProtected, blocked, "node_protected"),
            (KeepReason::PodUnreadable { pod: pod() }, blocked, "pod_unreadable"),
            (KeepReason::PodProtected { pod: pod() }, blocked, "pod_protected"),
            (KeepReason::PodBudget { pod: pod(), budget: other() }, blocked, "pod_budget"),
            (KeepReason::Nominated { pod: pod() }, None, "nominated"),
            (KeepReason::ConsolidationOff, dear, "consolidation_off"),
            (KeepReason::Settling { until }, None, "settling"),
            (KeepReason::NotEmpty, dear, "not_empty"),
            (KeepReason::LocalVolume { pod: pod(), claim: other() }, dear, "local_volume"),
            (KeepReason::BudgetExhausted { pool: pool.clone(), reason: Budgeted::Empty }, blocked, "budget_exhausted"),
            (KeepReason::UnknownPrice, dear, "unknown_price"),
            (KeepReason::PodWouldNotFit { pod: pod(), reasons: Vec::new() }, dear, "pod_would_not_fit"),
            (KeepReason::SeveralNodesNeeded { nodes: 2 }, dear, "several_nodes_needed"),
            (KeepReason::NoCheaperOffering { price, cheapest: price }, dear, "no_cheaper_offering"),
            (KeepReason::TooLittleSaved { saving: price, least: price }, dear, "too_little_saved"),
            (KeepReason::SpotToSpotOff, dear, "spot_to_spot_off"),
            (KeepReason::TooFewSpotTypes { found: 1, wanted: 15 }, dear, "too_few_spot_types"),
            (KeepReason::NotWorthIt { score_permille: 250 }, dear, "not_worth_it"),
            (KeepReason::PoolPaused { pool, until }, blocked, "pool_paused"),
            (KeepReason::CameBack { until }, dear, "came_back"),
            (KeepReason::PodsArriving { pods: 2 }, None, "pods_arriving"),
            (KeepReason::AfterAnother, None, "after_another"),
            (KeepReason::Fine, None, "fine"),
        ];
        for (reason, event, of_metrics) in &all {
            let told = telling(reason);
            assert_eq!((told.as_ref().map(|(event, _)| *event), word(reason)), (*event, *of_metrics), "{reason:?}");
            assert!(told.is_none_or(|(_, note)| note.ends_with(&reason.to_string())), "{reason:?}");
        }
        let arms = include_str!("../ops/kept.rs").lines().filter(|line| line.trim().starts_with("KeepReason::"));
        assert_eq!(arms.count(), all.len(), "each reason is in the table");
    }

    #[tokio::test]
    async fn what_becomes_of_a_move_is_told_on_its_claims_and_nodes() {
        let id = "aws:///us-east-1a/i-1";
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let server = Server::of([
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "c", "uid": "c" },
                "spec": { "requirements": [], "nodeClassRef": class }, "status": { "providerID": id, "nodeName": "n" },
            }),
            json!({ "kind": "Node", "metadata": { "name": "n", "uid": "n" }, "spec": { "providerID": id } }),
        ]);
        let context = server.context().await;
        let price = Some(Price::from_micro_dollars(100_000));
        let candidate =
            Candidate { claim: "c".into(), uid: "c".into(), node: Some("n".into()), pool: "p".into(), price };
        let command = Command {
            cause: Cause::Underutilized,
            candidates: vec![candidate],
            placements: Vec::new(),
            replacements: Vec::new(),
            origin: None,
        };
        found(&context, &command);
        let reason = KeepReason::NotWorthIt { score_permille: 250 };
        rejected(&context, &command, &Invalid::Kept { claim: "c".into(), reason });
        approved(&context, &command, &[Approval { pool: "p".into(), score_permille: 750 }]);
        let what = "delete 1 node(s) (Underutilized, saves $0.1000/h)";
        for (event, note) in [
            ("ConsolidationCandidate", format!("Consolidation candidate: {what}")),
            (
                "ConsolidationRejected",
                format!("Consolidation rejected: {what}, c: the saving is not worth the disruption (score 250 of 500)"),
            ),
            (
                "ConsolidationApproved",
                format!("Consolidation approved: {what}, the saving is worth the disruption (score 750 of 500)"),
            ),
        ] {
            for about in ["c", "n"] {
                assert_eq!(server.told(event, about).await, note);
            }
        }
    }

    #[test]
    fn a_move_is_described_by_what_is_done_and_saved() {
        let price = Some(Price::from_micro_dollars(100_000));
        let candidate = Candidate { claim: "a".into(), uid: "u".into(), node: None, pool: "p".into(), price };
        let command = Command {
            cause: Cause::Empty,
            candidates: vec![candidate.clone(), candidate],
            placements: Vec::new(),
            replacements: Vec::new(),
            origin: None,
        };
        assert_eq!(described(&command), "delete 2 node(s) (Empty, saves $0.2000/h)");
    }
}
