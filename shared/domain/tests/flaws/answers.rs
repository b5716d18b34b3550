//! Flaws in what becomes of pods that wait: a plan that passes over some, and pods that are told nothing.

use karp_domain::cluster::{PodKey, Snapshot};
use karp_domain::scheduling::{LastPlan, Solution, Told, solve};
use karp_domain::sim::Decisions;
use serde_json::json;

use super::counted::catches;
use super::{calm, case, changing, cluster};

#[test]
fn s10_pods_that_no_plan_has_an_answer_for() {
    struct Flaw;
    impl Decisions for Flaw {
        fn solve(&self, snapshot: &Snapshot) -> Solution {
            let mut other = snapshot.clone();
            other.pods.retain(|pod| !pod.key.name.starts_with("zoo") || pod.node.is_some());
            solve(&other)
        }
    }
    case("S-10", 30, calm()).catches(&Flaw);
}

/// Pods beyond the limit of their pool wait, and nobody says why.
#[test]
fn s10_pods_of_which_nothing_is_said() {
    struct Flaw;
    impl Decisions for Flaw {
        fn told(&self, plan: &LastPlan, solution: &Solution) -> Vec<PodKey> {
            let told = plan.told(solution).into_iter().filter(|(_, told)| !matches!(told, Told::Nowhere(_)));
            told.map(|(pod, _)| pod.clone()).collect()
        }
    }
    let world = cluster(&[("spec.limits", json!({"cpu": "4"}))]);
    catches(&Flaw, changing(), &world, "S-10", "nothing is said");
}
