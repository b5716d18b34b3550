//! Properties of `solve` on random small clusters with every kind of pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::cluster::{Claim, Pod, PodKey, Snapshot};
use karp_domain::scheduling::{Solution, solve};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::{a_cluster, shuffled};
use crate::world::{self, TYPES, catalogue, judge, pending, pool, snapshot, topology, with};

fn answer(objects: &[Value]) -> (Snapshot, Solution) {
    let snapshot = snapshot(objects, catalogue(TYPES));
    let solution = solve(&snapshot);
    judge::judge(&snapshot, &solution);
    topology::judge(objects, &snapshot, &solution);
    let mut starved = judge::refused_for_others(objects, &snapshot, &solution);
    if !starved.is_empty() {
        // the room that some pods gave up may be open to others in the next pass only
        let mut next = snapshot.clone();
        next.claims.extend(claims(&solution, "next"));
        let later = solve(&next);
        starved.retain(|pod, _| later.unschedulable.iter().any(|refused| refused.pod == *pod));
    }
    assert!(starved.is_empty(), "refused now and in the next pass: {starved:?}");
    (snapshot, solution)
}

/// The claims of a solution once they are made.
fn claims<'s>(solution: &'s Solution, prefix: &'s str) -> impl Iterator<Item = Arc<Claim>> + 's {
    solution.nodes.iter().enumerate().map(move |(at, node)| world::created(node, &format!("{prefix}-{at}")))
}

/// The cluster once the claims of a solution are made, and every pod that waits has a second like it.
fn next_pass(snapshot: &Snapshot, solution: &Solution, pass: usize) -> Snapshot {
    let mut next = snapshot.clone();
    next.claims.extend(claims(solution, &format!("pass-{pass}")));
    let second = |pod: &Arc<Pod>| {
        let name = format!("{}-{pass}", pod.key.name);
        Arc::new(Pod { key: PodKey::new(&pod.key.namespace, &name), uid: name.into(), ..Pod::clone(pod) })
    };
    next.pods.extend(snapshot.pods.iter().filter(|pod| pod.is_provisionable()).map(second));
    next
}

fn refused(solution: &Solution) -> BTreeSet<String> {
    solution.unschedulable.iter().map(|u| u.pod.to_string()).filter(|pod| !pod.contains("bad")).collect()
}

/// Objects that nothing good can come of.
fn something_bad() -> impl Strategy<Value = Vec<Value>> {
    let bad = || pending("bad", "1", "1Gi");
    let no_zone = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["nowhere"]}]);
    let not_ready =
        json!([{"type": "Ready", "status": "False", "reason": "x", "message": "", "lastTransitionTime": world::NOW}]);
    let gone = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "no-such-claim"}}]);
    let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "bad", "namespace": "default"},
        "spec": {"storageClassName": "no-such-class", "volumeName": "no-such-volume"}});
    let on_bad_claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "bad"}}]);
    prop::sample::select(vec![
        vec![with(bad(), &[("spec.nodeSelector", json!({"nowhere": "x"}))])],
        vec![pending("bad", "9000", "1Gi")],
        vec![pending("bad", "1n", "1E")],
        vec![with(bad(), &[("spec.volumes", gone)])],
        vec![claim, with(bad(), &[("spec.volumes", on_bad_claim)])],
        vec![with(bad(), &[("spec.schedulingGates", json!([{"name": "wait"}]))])],
        vec![pool("bad", no_zone.clone())],
        vec![with(pool("bad", no_zone), &[("spec.weight", json!(100))])],
        vec![with(pool("bad", json!([])), &[("spec.weight", json!(100)), ("status.conditions", not_ready)])],
        vec![with(pool("bad", json!([])), &[("spec.weight", json!(100)), ("spec.limits", json!({"nodes": 0}))])],
        vec![with(
            pool("bad", json!([])),
            &[("spec.weight", json!(100)), ("spec.template.spec.nodeClassRef.name", json!("missing"))],
        )],
        vec![with(
            pool("bad", json!([])),
            &[("spec.weight", json!(100)), ("spec.template.spec.nodeClassRef.group", json!("eks.amazonaws.com"))],
        )],
        vec![with(
            pool("bad", json!([{"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 50}])),
            &[("spec.weight", json!(100))],
        )],
        vec![
            json!({"kind": "PersistentVolume", "metadata": {"name": "bad"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}}),
        ],
    ])
}

proptest! {
    #![proptest_config(deep::cases(150))]

    #[test]
    fn every_answer_is_valid_in_every_way_it_may_turn_out(objects in a_cluster()) {
        answer(&objects);
    }

    #[test]
    fn limits_hold_pass_after_pass(objects in a_cluster()) {
        let (mut now, mut solution) = answer(&objects);
        for pass in 0..3 {
            now = next_pass(&now, &solution, pass);
            solution = solve(&now);
            judge::judge_limits(&now, &solution);
        }
    }

    #[test]
    fn the_answer_is_the_same_twice_and_in_any_order(objects in a_cluster(), seed in any::<u64>()) {
        let one = snapshot(&objects, catalogue(TYPES));
        let mut types = TYPES.to_vec();
        types.rotate_left(seed as usize % TYPES.len());
        let other = snapshot(&shuffled(objects, seed), catalogue(&types));
        let first = solve(&one);
        prop_assert_eq!(&first, &solve(&one));
        prop_assert_eq!(&first, &solve(&other));
    }

    #[test]
    fn something_bad_takes_nothing_from_the_others(objects in a_cluster(), bad in something_bad()) {
        let (_, before) = answer(&objects);
        let mut more = objects;
        more.extend(bad);
        let (_, after) = answer(&more);
        prop_assert_eq!(refused(&before), refused(&after));
    }
}

/// Small pods of nobody's namespace with a pool to themselves, which takes others too.
fn newcomers(count: usize) -> (Value, Vec<Value>) {
    let own = json!([{"key": "own", "operator": "In", "values": ["x"]}]);
    let newcomer = |n: usize| {
        let more = [("metadata.namespace", json!("apart")), ("spec.nodeSelector", json!({"own": "x"}))];
        with(pending(&format!("newcomer-{n}"), "100m", "64Mi"), &more)
    };
    (pool("own", own), (0..count).map(newcomer).collect())
}

/// Whether what a pod asks of others, or of nodes that it cannot be on, may mean newcomers or their nodes: a spread counts the nodes that a pod's
/// volume keeps it from.
fn may_mind(objects: &[Value]) -> bool {
    objects.iter().map(Value::to_string).any(|text| {
        let holds = |part: &str| text.contains(part);
        holds(r#""namespaceSelector":{}"#)
            || holds(r#""nodeAffinityPolicy":"Ignore""#)
            || holds(r#""whenUnsatisfiable":"DoNotSchedule""#) && holds(r#""persistentVolumeClaim""#)
    })
}

proptest! {
    #![proptest_config(deep::cases(150))]

    #[test]
    fn a_pod_with_a_place_of_its_own_takes_nothing_from_the_others(objects in a_cluster(), count in 1_usize..4) {
        prop_assume!(!may_mind(&objects));
        let (own, newcomers) = newcomers(count);
        let mut objects = objects;
        objects.push(own);
        let (_, before) = answer(&objects);
        objects.extend(newcomers);
        let (_, after) = answer(&objects);
        prop_assert_eq!(refused(&before), refused(&after));
    }
}

/// A judge that lets everything pass proves nothing: each of these answers is wrong, and it says so.
#[test]
fn the_judge_sees_what_is_wrong() {
    let with_label = |name: &str, more: &[(&str, Value)]| with(pending(name, "100m", "64Mi"), more);
    let zone = "topology.kubernetes.io/zone";
    let term = json!([{"topologyKey": zone, "labelSelector": {"matchLabels": {"app": "test"}}}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let spread = json!([{"maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "test"}}}]);
    let affinity = json!([{"topologyKey": zone, "labelSelector": {"matchLabels": {"app": "elsewhere"}}}]);
    let port = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
    let volume = |claim: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    let cases: Vec<(&str, Vec<Value>)> = vec![
        (
            "must not meet",
            vec![
                with_label("a", &[(&format!("spec.affinity.podAntiAffinity.{required}"), term)]),
                with_label("b", &[]),
            ],
        ),
        ("is away from", vec![with_label("a", &[(&format!("spec.affinity.podAffinity.{required}"), affinity)])]),
        (
            "passes 1",
            (0..3)
                .map(|n| with_label(&format!("p{n}"), &[("spec.topologySpreadConstraints", spread.clone())]))
                .collect(),
        ),
        (
            "want one port",
            vec![with_label("a", &[("spec.containers", port.clone())]), with_label("b", &[("spec.containers", port)])],
        ),
        ("without its claim", vec![with_label("a", &[("spec.volumes", volume("missing"))])]),
        ("cannot reach", vec![with_label("a", &[("spec.volumes", volume("bound-b"))])]),
        ("must be bound", vec![with_label("a", &[("spec.volumes", volume("unbound"))])]),
        (
            "takes one pod at a time",
            ["a", "b"].map(|name| with_label(name, &[("spec.volumes", volume(world::universe::SOLE))])).to_vec(),
        ),
    ];
    for (fault, pods) in cases {
        // solve pods that ask for nothing, then judge the answer as one to pods that ask
        let one_type = json!({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]});
        let mut objects = vec![
            world::class(),
            pool("default", json!([{"key": zone, "operator": "In", "values": ["us-east-1a"]}, one_type])),
        ];
        objects.extend(world::universe::storage());
        for other in ["us-east-1b", "us-east-1c"] {
            let [node, claim] =
                world::node(other, "default", "t3.nano", other, karp_domain::catalogue::CapacityType::Spot);
            let taint = json!([{"key": "full", "effect": "NoSchedule"}]);
            objects.extend([with(node, &[("spec.taints", taint)]), claim]);
        }
        let plain = pods.iter().map(|pod| pending(pod["metadata"]["name"].as_str().unwrap(), "100m", "64Mi"));
        let asked: Vec<Value> = objects.iter().cloned().chain(pods.clone()).collect();
        objects.extend(plain);
        let (snapshot, solution) = answer(&objects);
        assert!(solution.unschedulable.is_empty());
        let verdict = std::panic::catch_unwind(|| topology::judge(&asked, &snapshot, &solution));
        let said = verdict.expect_err(fault);
        let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(said.contains(fault), "{fault}: {said}");
    }
}
