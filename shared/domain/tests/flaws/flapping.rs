//! Flaws by which nodes take each other's place for ever.

use std::sync::Arc;

use karp_domain::cluster::{ConsolidationFloor, Host, Phase, Pool, Settings, Snapshot};
use karp_domain::disruption::{Begun, Cause, Command, DisruptionPlan, Memory, plan_with, uphold};
use karp_domain::scheduling::solve;
use karp_domain::sim::{Decisions, Faults, World};
use serde_json::json;

use super::counted::{candidate, catches};
use super::world::{NOW, TYPES, at, catalogue, pool, with};
use super::{Seeing, budget, calm, case, with_pools, with_prices, workload};

/// Every five minutes the one half of all families seems to cost a third, then the other.
fn swinging(snapshot: &Snapshot) -> Snapshot {
    let phase = snapshot.now.as_second() / 300 % 2 == 0;
    with_prices(snapshot, |t, price| {
        let low = t.name.starts_with('c') == phase;
        price.dollars() * if low { 1.0 / 3.0 } else { 1.0 }
    })
}

/// A cluster of one pod, and so of one node, of a type that each of these pools buys.
fn alone(pools: &[&str], types: &[&str]) -> World {
    let only = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let of = |name: &&str| {
        let spec = with(pool(name, only.clone()), &[budget("1")]);
        Pool::from_kube(&serde_json::from_value(spec).unwrap()).unwrap()
    };
    let pools = pools.iter().map(of).collect();
    let settings = Settings { consolidation_floor: ConsolidationFloor::NONE, ..Settings::default() };
    World::new(at(NOW), catalogue(types), pools, vec![workload("web", "900m", "1Gi", 1, &[])]).with_settings(settings)
}

#[test]
fn s9_moves_after_prices_that_swing() {
    case("S-9", 180, calm()).catches(&Seeing(swinging));
}

/// The same without a memory of moves: one node follows the other.
#[test]
fn s9_nodes_that_take_each_others_place() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, _: &Memory) -> DisruptionPlan {
            plan_with(&swinging(snapshot), &Memory::default())
        }

        fn uphold(&self, command: Command, snapshot: &Snapshot) -> Option<Command> {
            uphold(command, &swinging(snapshot)).command
        }
    }
    catches(&Flaw, calm(), &alone(&["default"], TYPES), "S-9", "took each other's place");
}

/// Every four minutes the node is to be the other pool's, of the same type.
#[test]
fn s9_nodes_that_go_back_and_forth_between_pools() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let wanted = ["left", "right"][usize::from(snapshot.now.as_second() / 240 % 2 == 0)];
            let mut plan = plan_with(snapshot, memory);
            plan.commands.clear();
            let hosts = snapshot.hosts();
            let mut others = hosts.iter().filter(|host| host.pool() != Some(wanted) && !host.is_leaving());
            let Some(other) = others.find_map(|host| candidate(host).filter(|_| is_initialized(host))) else {
                return plan;
            };
            let mut empty = with_pools(snapshot, |pool| pool.weight = u32::from(&*pool.name == wanted));
            empty.nodes.clear();
            empty.claims.clear();
            for pod in &mut empty.pods {
                let pod = Arc::make_mut(pod);
                (pod.node, pod.phase, pod.unschedulable) = (None, Phase::Pending, true);
            }
            plan.commands.push(Command {
                cause: Cause::Drifted,
                candidates: vec![other],
                placements: Vec::new(),
                replacements: solve(&empty).nodes,
                origin: None,
            });
            plan
        }

        fn uphold(&self, command: Command, _: &Snapshot) -> Option<Command> {
            Some(command)
        }
    }
    catches(&Flaw, calm(), &alone(&["left", "right"], &["m7i.large"]), "S-9", "were there before");
}

fn is_initialized(host: &Host) -> bool {
    host.node.as_ref().is_some_and(|node| node.is_initialized())
}

#[test]
fn s9_nodes_replaced_once_more_after_a_restart() {
    struct Flaw;
    impl Decisions for Flaw {
        fn begun(&self, _: &Snapshot) -> Vec<Begun> {
            Vec::new()
        }
    }
    case("S-9", 60, Faults { drifts_permille: 10, crash_permille: 50, ..calm() }).catches_this(&Flaw);
}
