//! Pools of which nothing can be bought: what is said of them, and of pods that they refuse.

use karp_domain::cluster::{MinValuesPolicy, Snapshot};
use karp_domain::scheduling::{barren, solve};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, pending, pool, snapshot, with};

fn one(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn world(pools: &[(&str, Value)]) -> Snapshot {
    let mut objects = vec![class(), pending("p", "1", "1Gi")];
    objects.extend(pools.iter().map(|(name, requirements)| pool(name, requirements.clone())));
    snapshot(&objects, catalogue(TYPES))
}

fn told(snapshot: &Snapshot) -> Vec<(String, String)> {
    barren(snapshot).into_iter().map(|(pool, lack)| (pool.to_string(), lack.to_string())).collect()
}

#[test]
fn a_pool_of_which_nothing_can_be_bought_says_why() {
    let few = json!([{"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 50}]);
    let mut all = world(&[
        ("fine", json!([])),
        ("few", few),
        ("misspelt", json!([one("karpenter.k8s.aws/instance-family", "In", &["m7x"])])),
        (
            "torn",
            json!([
                one("karpenter.k8s.aws/instance-family", "In", &["m7i"]),
                one("karpenter.k8s.aws/instance-category", "In", &["t"]),
            ]),
        ),
        ("elsewhere", json!([one("topology.kubernetes.io/zone", "In", &["eu-west-1a"])])),
    ]);
    let begins = "NodePool requirements leave nothing to launch: ";
    let wanted = [
        (
            "elsewhere",
            "no instance type that they name is sold in eu-west-1a, only as spot or on-demand in us-east-1a or us-east-1b",
        ),
        ("few", "minValues asks for 50 values of node.kubernetes.io/instance-type, what is offered has "),
        ("misspelt", "no instance type of its class has karpenter.k8s.aws/instance-family In [m7x]"),
        ("torn", "no instance type of its class has all the labels that they ask for"),
    ];
    let found = told(&all);
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for ((pool, says), (name, why)) in found.iter().zip(wanted) {
        assert!(pool == name && says.starts_with(&format!("{begins}{why}")), "{pool}: {says}");
    }
    let mut missing = world(&[("fine", json!([]))]);
    missing.catalogues.insert("default".into(), catalogue(TYPES).without(|_, _| true).into());
    assert!(told(&missing)[0].1.ends_with("are out of capacity now, in their zones and capacity types"), "for now");
    all.settings.min_values = MinValuesPolicy::BestEffort;
    assert!(told(&all).iter().all(|(pool, _)| pool != "few"), "fewer will do");
}

#[test]
fn pools_that_may_not_grow_anyway_are_not_told_of() {
    let gone = json!([one("karpenter.k8s.aws/instance-family", "In", &["m7x"])]);
    let of = |more: &[(&str, Value)]| {
        let pool = with(pool("p", gone.clone()), more);
        told(&snapshot(&[class(), pool], catalogue(TYPES))).len()
    };
    assert_eq!(of(&[]), 1);
    assert_eq!(of(&[("spec.replicas", json!(1))]), 0, "static");
    assert_eq!(of(&[("spec.template.spec.nodeClassRef.group", json!("eks.amazonaws.com"))]), 0, "foreign");
    assert_eq!(of(&[("metadata.deletionTimestamp", json!("2026-11-21T11:00:00Z"))]), 0, "on its way out");
}

/// EC2 does not describe it, so no type has the label: a node that only says so would be of no use.
#[test]
fn who_asks_for_nitro_sandboxes_gets_no_node() {
    let key = "karpenter.k8s.aws/nitro-sandbox";
    for requirement in [json!({"key": key, "operator": "Exists"}), one(key, "In", &["true"])] {
        let asked = world(&[("sandbox", json!([requirement]))]);
        let solution = solve(&asked);
        let [refused] = &solution.unschedulable[..] else { panic!("{solution:?}") };
        assert!(
            solution.nodes.is_empty() && refused.to_string().contains(&format!("no instance type has {key}")),
            "{refused}"
        );
        assert!(told(&asked)[0].1.contains(key));
    }
    for absent in [json!({"key": key, "operator": "DoesNotExist"}), one(key, "NotIn", &["true"])] {
        assert_eq!(solve(&world(&[("plain", json!([absent]))])).nodes.len(), 1, "whoever does without goes on");
    }
    let wanted = with(pending("p", "1", "1Gi"), &[("spec.nodeSelector", json!({key: "true"}))]);
    let solution = solve(&snapshot(&[class(), pool("default", json!([])), wanted], catalogue(TYPES)));
    assert!(solution.nodes.is_empty() && solution.unschedulable[0].to_string().contains(key), "{solution:?}");
    let slot = json!({"requests": {"eks.amazonaws.com/nitro-sandbox": "1"}, "limits": {"eks.amazonaws.com/nitro-sandbox": "1"}});
    let container = json!([{"name": "c", "resources": slot}]);
    let wanted = with(pending("p", "1", "1Gi"), &[("spec.containers", container)]);
    let solution = solve(&snapshot(&[class(), pool("default", json!([])), wanted], catalogue(TYPES)));
    let refused = solution.unschedulable[0].to_string();
    assert!(solution.nodes.is_empty() && refused.contains("eks.amazonaws.com/nitro-sandbox: 1 asked"), "{refused}");
}
