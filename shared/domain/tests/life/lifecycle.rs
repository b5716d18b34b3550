//! The life of a claim, case by case: steps and their deadlines, registration health, drift, collection.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{Node, Pool};
use karp_domain::lifecycle::{
    Allowance, Collector, DRIFT_INTERVAL, Drift, Health, LAUNCH_TIMEOUT, Listed, Live, Obstacle, Outcome,
    REGISTRATION_TIMEOUT, Registrations, Step, Timeout, Witnesses, admit, adopt, drift, is_ready, next, open,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{self, NOW, at, catalogue, node, pool, with};

const CREATED: &str = "2026-11-21T11:00:00Z";

fn pair(more_node: &[(&str, Value)], more_claim: &[(&str, Value)]) -> (Node, NodeClaim) {
    let [node, claim] = node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
    let node = Node::from_kube(&serde_json::from_value(with(node, more_node)).unwrap()).unwrap();
    let claim = with(claim, &[("metadata.finalizers", json!([labels::TERMINATION_FINALIZER]))]);
    (node, serde_json::from_value(with(claim, more_claim)).unwrap())
}

/// A claim whose conditions are true up to here.
fn claim_with(conditions: &[&str]) -> NodeClaim {
    let (_, mut claim) = pair(&[], &[]);
    let status = claim.status.as_mut().unwrap();
    status.conditions.retain(|condition| conditions.contains(&condition.kind.as_str()));
    if !conditions.contains(&conditions::REGISTERED) {
        status.node_name = None;
    }
    claim
}

fn after(start: &str, time: SignedDuration) -> Timestamp {
    at(start) + time
}

fn second(n: i64) -> Timestamp {
    after(NOW, SignedDuration::from_secs(n))
}

#[test]
fn a_claim_is_guarded_before_anything_is_bought() {
    let mut claim = claim_with(&[]);
    claim.metadata.finalizers = None;
    assert_eq!(next(&claim, None, None, at(CREATED)).step, Step::Guard);
    claim.spec.node_class_ref.group = "eks.amazonaws.com".to_owned();
    assert_eq!(next(&claim, None, None, at(CREATED)).step, Step::Leave);
}

#[test]
fn a_claim_that_goes_is_taken_to_its_end_however_far_it_was() {
    for conditions in [&[][..], &["Launched"], &["Launched", "Registered"], &["Launched", "Registered", "Initialized"]]
    {
        let mut claim = claim_with(conditions);
        claim.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
        assert_eq!(next(&claim, None, None, at(NOW)).step, Step::End);
    }
}

#[test]
fn a_claim_is_ready_while_it_has_its_node_and_stays() {
    for early in [&[][..], &["Launched"], &["Launched", "Registered"]] {
        assert!(!is_ready(&claim_with(early)), "{early:?}");
    }
    let ready = claim_with(&["Launched", "Registered", "Initialized"]);
    assert!(is_ready(&ready));
    let mut leaving = ready.clone();
    leaving.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    assert!(!is_ready(&leaving), "it is to go");
    let mut lost = ready;
    assert_eq!(next(&lost, None, None, at(NOW)).step, Step::Lose);
    let (status, unknown) = (lost.status.as_mut().unwrap(), ConditionStatus::Unknown);
    conditions::set(&mut status.conditions, conditions::REGISTERED, unknown, "NodeNotFound", "", at(NOW));
    assert!(!is_ready(&lost), "its node is gone, though it was initialized once");
}

#[test]
fn a_launch_has_five_minutes_and_a_node_fifteen_to_join() {
    let claim = claim_with(&[]);
    let step = |time| next(&claim, None, None, time);
    let end = after(CREATED, LAUNCH_TIMEOUT + SignedDuration::from_mins(10));
    assert_eq!((step(at(CREATED)).step, step(at(CREATED)).look), (Step::Launch, Some(end)), "clocks may differ");
    assert_eq!(step(end - SignedDuration::from_secs(1)).step, Step::Launch);
    assert_eq!(step(end).step, Step::GiveUp(Timeout::Launch));
    assert_eq!(step(at(CREATED) - SignedDuration::from_hours(2)).step, Step::Launch, "a clock that went back");

    let mut claim = claim_with(&[]);
    let (status, tried) = (claim.status.get_or_insert_default(), at(CREATED) + SignedDuration::from_hours(2));
    conditions::set(&mut status.conditions, conditions::LAUNCHED, ConditionStatus::Unknown, "NoCapacity", "", tried);
    let step = |time| next(&claim, None, None, time).step;
    assert_eq!(step(tried + LAUNCH_TIMEOUT - SignedDuration::from_secs(1)), Step::Launch);
    assert_eq!(step(tried + LAUNCH_TIMEOUT), Step::GiveUp(Timeout::Launch));

    let claim = claim_with(&["Launched"]);
    let step = |time| next(&claim, None, None, time);
    let end = after(CREATED, REGISTRATION_TIMEOUT);
    assert_eq!((step(at(CREATED)).step, step(at(CREATED)).look), (Step::AwaitNode, Some(end)));
    assert_eq!(step(end).step, Step::GiveUp(Timeout::Registration));
}

#[test]
fn a_node_registers_behind_its_taint_and_is_never_opened_without_it() {
    let claim = claim_with(&["Launched"]);
    let labels_off = ("metadata.labels", json!({}));
    let closed = ("spec.taints", json!([{"key": labels::UNREGISTERED, "effect": "NoExecute"}]));
    let (bare, _) = pair(std::slice::from_ref(&labels_off), &[]);
    assert!(matches!(next(&claim, Some(&bare), None, at(CREATED)).step, Step::AwaitTaint { .. }));
    let late = after(CREATED, REGISTRATION_TIMEOUT);
    assert_eq!(next(&claim, Some(&bare), None, late).step, Step::GiveUp(Timeout::Registration));
    let (joined, _) = pair(&[labels_off, closed], &[]);
    assert_eq!(next(&claim, Some(&joined), None, at(CREATED)).step, Step::Register);
    assert_eq!(next(&claim, Some(&joined), None, late).step, Step::Register, "late is better than never");
}

#[test]
fn a_node_is_initialized_when_nothing_stands_between_it_and_its_pods() {
    let mut claim = claim_with(&["Launched", "Registered"]);
    claim.spec.startup_taints = serde_json::from_value(json!([{"key": "cni/agent", "effect": "NoSchedule"}])).unwrap();
    claim.spec.resources.requests = serde_json::from_value(json!({"nvidia.com/gpu": "1", "cpu": "1"})).unwrap();
    let gpu = ("status.allocatable", json!({"cpu": "4", "nvidia.com/gpu": "1"}));
    let taint = |key: &str| ("spec.taints", json!([{"key": key, "effect": "NoSchedule"}]));
    let ready = |status: &str| ("status.conditions", json!([{"type": "Ready", "status": status}]));
    let cases = [
        (vec![gpu.clone(), ready("False")], Some(Obstacle::NotReady)),
        (vec![gpu.clone(), ready("Unknown")], Some(Obstacle::NotReady)),
        (vec![gpu.clone(), taint("cni/agent")], Some(Obstacle::StartupTaint { key: "cni/agent".to_owned() })),
        (
            vec![gpu.clone(), taint("node.kubernetes.io/not-ready")],
            Some(Obstacle::EphemeralTaint { key: "node.kubernetes.io/not-ready".to_owned() }),
        ),
        (vec![], Some(Obstacle::Resource { name: "nvidia.com/gpu".to_owned() })),
        (vec![gpu, taint("team")], None),
    ];
    for (more, obstacle) in cases {
        let (node, _) = pair(&more, &[]);
        let found = next(&claim, Some(&node), None, at(NOW));
        assert_eq!(found.step, obstacle.map_or(Step::Initialize, Step::AwaitReady));
        assert!(found.look.is_some(), "kubelet may be silent: there is always a next look");
    }
}

#[test]
fn a_node_that_runs_is_looked_at_when_something_may_change() {
    let (node, claim) = pair(&[], &[]);
    let step = |quiet: Option<i64>| next(&claim, Some(&node), quiet.map(SignedDuration::from_secs), at(NOW));
    let live = |consolidatable| Step::Live(Live { consolidatable, inconsistency: None });
    assert_eq!(step(None).step, live(false), "consolidateAfter: Never");
    assert_eq!(step(Some(0)).step, live(true));
    assert_eq!(step(None).look, Some(after(NOW, DRIFT_INTERVAL)));
    assert_eq!((step(Some(3660)).step, step(Some(3660)).look), (live(false), Some(second(60))));
}

#[test]
fn a_node_that_lost_what_its_pods_asked_for_is_inconsistent() {
    let (node, mut claim) = pair(&[("status.capacity", json!({"cpu": "2", "memory": "15Gi"}))], &[]);
    let found = |claim: &NodeClaim| match next(claim, Some(&node), None, at(NOW)).step {
        Step::Live(live) => live.inconsistency,
        other => panic!("{other:?}"),
    };
    claim.spec.resources.requests = Default::default();
    assert_eq!(found(&claim), None, "nobody asked for cpu");
    claim.spec.resources.requests = serde_json::from_value(json!({"cpu": "1", "memory": "1Gi"})).unwrap();
    assert_eq!(found(&claim).as_deref(), Some("expected 4 of resource cpu, but found 2"));
}

#[test]
fn a_node_that_is_gone_is_lost_and_not_given_up_at_once() {
    let (node, mut claim) = pair(&[], &[]);
    assert_eq!(next(&claim, None, None, at(NOW)).step, Step::Lose);
    let status = claim.status.as_mut().unwrap();
    let unknown = ConditionStatus::Unknown;
    conditions::set(&mut status.conditions, conditions::REGISTERED, unknown, "NodeNotFound", "", at(NOW));
    let years = at(NOW) + SignedDuration::from_hours(9000);
    assert_eq!(next(&claim, None, None, years).step, Step::AwaitNode, "the collector decides, within its bound");
    assert_eq!(next(&claim, Some(&node), None, at(NOW)).step, Step::Register, "it came back");
}

#[test]
fn a_node_gets_what_its_claim_says_before_it_opens() {
    let (_, mut claim) = pair(&[], &[("spec.startupTaints", json!([{"key": "cni/agent", "effect": "NoSchedule"}]))]);
    claim.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
    let note = |key: &str| (key.to_owned(), "n".to_owned());
    claim.metadata.annotations = Some(BTreeMap::from([note("karp.sh/launch-attempt"), note("note")]));
    let mut joined: k8s_openapi::api::core::v1::Node = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": labels::UNREGISTERED, "effect": "NoExecute"}]},
    }))
    .unwrap();
    let patch = adopt(&claim, &joined);
    assert_eq!(patch["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(patch["metadata"]["annotations"], json!({"note": "n"}));
    assert_eq!(patch["metadata"]["finalizers"], json!([labels::TERMINATION_FINALIZER]));
    assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "uid-n1");
    let taints = patch["spec"]["taints"].as_array().unwrap();
    let keys: Vec<&str> = taints.iter().filter_map(|taint| taint["key"].as_str()).collect();
    assert_eq!(keys, [labels::UNREGISTERED, "cni/agent"]);
    let opened = open(&joined);
    assert_eq!(opened["spec"]["taints"], json!([]));
    assert_eq!(opened["metadata"]["labels"][labels::REGISTERED], "true");
    let both = admit(&claim, &joined);
    assert_eq!(both["metadata"]["labels"], json!({"team": "a", (labels::REGISTERED): "true"}));
    assert_eq!(both["spec"]["taints"], json!([{"key": "cni/agent", "effect": "NoSchedule"}]));
    for field in ["annotations", "finalizers", "ownerReferences"] {
        assert_eq!(both["metadata"][field], patch["metadata"][field], "{field}");
    }
    let known = joined.metadata.labels.as_mut().unwrap();
    known.insert(labels::DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
    assert_eq!(adopt(&claim, &joined)["spec"]["taints"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_pool_whose_nodes_never_join_launches_ever_more_slowly() {
    let mut pool = Registrations::default();
    assert_eq!((pool.health(), pool.allowance(9, at(NOW))), (Health::Unknown, Allowance::All));
    pool.note(Outcome::Missing, at(NOW), at(NOW));
    assert_eq!((pool.health(), pool.allowance(0, at(NOW))), (Health::Healthy, Allowance::All), "one may be chance");
    pool.note(Outcome::Missing, at(NOW), at(NOW));
    assert_eq!(pool.health(), Health::Unhealthy { missing: 2, of: 2 });
    assert_eq!(pool.allowance(0, at(NOW)), Allowance::None { until: Some(second(60)) });
    assert_eq!(pool.allowance(0, second(60)), Allowance::Trial);
    assert_eq!(pool.allowance(1, second(60)), Allowance::None { until: None }, "one trial at a time");
    pool.note(Outcome::Joined, second(60), second(90));
    assert_eq!(pool.allowance(0, second(90)), Allowance::All, "the first that joins closes the breaker");
}

/// Returns how long a pool has to wait for its next trial.
fn pause(pool: &Registrations, now: Timestamp) -> SignedDuration {
    match pool.allowance(0, now) {
        Allowance::None { until: Some(until) } => until.duration_since(now),
        other => panic!("{other:?}"),
    }
}

/// A hundred nodes that are launched within a minute and given up within another are one bad moment, not a hundred.
#[test]
fn a_crowd_that_does_not_join_stops_its_pool_as_one_node_does() {
    let (mut pool, given_up) = (Registrations::default(), |n: i64| second(900 + n / 2));
    (0..100).for_each(|n| pool.note(Outcome::Missing, second(n / 2), given_up(n)));
    assert_eq!(pool.health(), Health::Unhealthy { missing: 4, of: 4 }, "none of the last ones has joined");
    assert_eq!(pause(&pool, given_up(99)), SignedDuration::from_mins(1));
    // what is tried when that is known counts by itself: 1 min once more, as after two nodes, then twice as long each time
    let mut now = given_up(99);
    for minutes in [1, 2, 4, 8] {
        let tried = now + SignedDuration::from_mins(1);
        now = tried + REGISTRATION_TIMEOUT;
        pool.note(Outcome::Missing, tried, now);
        assert_eq!(pause(&pool, now), SignedDuration::from_mins(minutes));
    }
}

#[test]
fn failures_say_nothing_of_a_pool_whose_nodes_of_the_same_time_have_joined() {
    let mut pool = Registrations::default();
    (0..98).for_each(|n| pool.note(Outcome::Joined, second(n / 2), second(60 + n)));
    (0..3).for_each(|n| pool.note(Outcome::Missing, second(50 + n), second(950 + n)));
    assert_eq!(pool.health(), Health::Unhealthy { missing: 3, of: 4 });
    assert_eq!(pool.allowance(0, second(960)), Allowance::All);
    (0..2).for_each(|n| pool.note(Outcome::Missing, second(600), second(1500 + n)));
    assert_eq!(pause(&pool, second(1501)), SignedDuration::from_mins(1), "those came later");
}

/// Claims are given up together: what may pass in a minute must not stop the pool for hours, and what stays must.
#[test]
fn only_launches_that_ec2_refuses_for_good_count_like_nodes_that_do_not_join() {
    let outcome = |timeout, reason: Option<&str>| {
        let mut claim = claim_with(&[]);
        let all = &mut claim.status.get_or_insert_default().conditions;
        all.clear();
        if let Some(reason) = reason {
            conditions::set(all, conditions::LAUNCHED, ConditionStatus::Unknown, reason, "", at(NOW));
        }
        Outcome::of(timeout, &claim)
    };
    for passing in [None, Some("LaunchFailed"), Some("TokenReused"), Some("LaunchInDoubt")] {
        assert_eq!(outcome(Timeout::Launch, passing), None, "{passing:?}");
        assert_eq!(outcome(Timeout::Registration, passing), Some(Outcome::Missing));
    }
    for stays in ["Unauthorized", "InvalidTemplate"] {
        assert_eq!(outcome(Timeout::Launch, Some(stays)), Some(Outcome::Missing), "{stays}");
    }
}

#[test]
fn six_hours_of_failure_cost_a_handful_of_launches() {
    let mut pool = Registrations::default();
    let (mut now, end) = (at(NOW), after(NOW, SignedDuration::from_hours(6)));
    let mut launched = 0;
    while now < end {
        match pool.allowance(0, now) {
            Allowance::All | Allowance::Trial => {
                launched += 1;
                let tried = now;
                now += REGISTRATION_TIMEOUT;
                pool.note(Outcome::Missing, tried, now);
            }
            Allowance::None { until } => now = until.expect("no trial runs"),
        }
    }
    assert!((6..=9).contains(&launched), "{launched}");
}

#[test]
fn health_is_forgotten_when_pool_or_class_change_and_taken_over_from_an_earlier_process() {
    let mut pool = Registrations::unhealthy_since(at(NOW));
    pool.made_from(1, 1);
    assert_eq!(pool.health(), Health::Unhealthy { missing: 2, of: 2 });
    pool.made_from(1, 1);
    assert!(matches!(pool.allowance(0, at(NOW)), Allowance::None { .. }));
    pool.made_from(1, 2);
    assert_eq!((pool.health(), pool.allowance(0, at(NOW))), (Health::Unknown, Allowance::All));
}

fn stamp(hash: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(hash.to_owned(), value.to_owned()), (format!("{hash}-version"), "v3".to_owned())])
}

fn read(requirements: Value) -> Pool {
    Pool::from_kube(&serde_json::from_value(pool("default", requirements)).unwrap()).unwrap()
}

#[test]
fn drift_has_its_reason() {
    let family = |name: &str| json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": [name]}]);
    let (_, mut claim) = pair(&[], &[]);
    let all = catalogue(world::TYPES);
    let mut annotations = stamp(labels::NODE_POOL_HASH, "1");
    annotations.extend(stamp(labels::EC2_NODE_CLASS_HASH, "1"));
    claim.metadata.annotations = Some(annotations);
    let judge = |pool: &Pool, hashes: (&str, &str)| {
        let (own, class) = (stamp(labels::NODE_POOL_HASH, hashes.0), stamp(labels::EC2_NODE_CLASS_HASH, hashes.1));
        drift(&claim, pool, &own, &class, Some(&all), at(NOW))
    };
    let same = read(family("m7i"));
    assert_eq!(judge(&same, ("1", "1")), None);
    assert_eq!(judge(&same, ("2", "1")), Some(Drift::NodePool));
    assert_eq!(judge(&same, ("1", "2")), Some(Drift::NodeClass));
    assert_eq!(judge(&read(family("c7i")), ("1", "1")), Some(Drift::Requirements));
    let open = json!([{"key": "team", "operator": "Exists"}, {"key": "x", "operator": "In", "values": ["1", "2"]}]);
    assert_eq!(judge(&read(open), ("1", "1")), None, "a new claim would not have these labels either");
    let settled = read(json!([{"key": "team", "operator": "In", "values": ["a"]}]));
    assert_eq!(judge(&settled, ("1", "1")), Some(Drift::Requirements));
    claim.metadata.annotations = None;
    let (few, none) = (catalogue(&["c6g.large"]), BTreeMap::new());
    let by_type = |list, time| drift(&claim, &same, &none, &none, list, time);
    assert_eq!(by_type(Some(&few), at(NOW)), Some(Drift::InstanceTypeNotFound));
    let young = after(CREATED, SignedDuration::from_mins(59));
    assert_eq!(by_type(Some(&few), young), None, "lists of types come late");
    assert_eq!(by_type(None, at(NOW)), None, "no list, no fact");
    assert_eq!(Drift::Cloud("AMIDrift".to_owned()).to_string(), "AMIDrift");
}

#[test]
fn a_new_hash_version_drifts_nothing() {
    let (_, mut claim) = pair(&[], &[]);
    claim.metadata.annotations = Some(stamp(labels::NODE_POOL_HASH, "1"));
    let mut newer = stamp(labels::NODE_POOL_HASH, "2");
    newer.insert(labels::NODE_POOL_HASH_VERSION.to_owned(), "v4".to_owned());
    assert_eq!(drift(&claim, &read(json!([])), &newer, &BTreeMap::new(), None, at(NOW)), None);
}

fn listed(id: &str, claim: Option<&str>) -> Listed {
    Listed { provider_id: id.to_owned(), claim: claim.map(str::to_owned), batch: None, ending: false }
}

fn wish(name: &str, id: Option<&str>) -> Arc<NodeClaim> {
    let mut claim = claim_with(&["Launched"]);
    claim.metadata.name = Some(name.to_owned());
    claim.metadata.uid = Some(format!("uid-{name}"));
    claim.status.as_mut().unwrap().provider_id = id.map(str::to_owned);
    Arc::new(claim)
}

fn witnesses<'a>(listed: &'a [Listed], claims: &'a [Arc<NodeClaim>], ready: bool) -> Witnesses<'a> {
    Witnesses { listed, claims, is_ready: if ready { &|_| true } else { &|_| false } }
}

#[test]
fn an_unclaimed_instance_is_collected_after_two_listings_and_its_age() {
    let mut collector = Collector::default();
    let instances = [listed("i-1", None), listed("i-2", Some("young")), listed("i-3", None)];
    let claims = [wish("young", None), wish("old", Some("i-3"))];
    let mut pass = |time: i64, seen: &[Listed]| collector.pass(&witnesses(seen, &claims, true), second(time)).instances;
    assert!(pass(0, &instances).is_empty());
    assert!(pass(10, &instances).is_empty(), "too young");
    assert_eq!(pass(30, &instances), ["i-1"]);
    assert!(pass(31, &[]).is_empty());
    assert!(pass(90, &instances).is_empty(), "seen anew");
    let mut blind = Collector::default();
    for time in [0, 60, 120] {
        let found = blind.pass(&witnesses(&instances, &[], true), second(time));
        assert_eq!(found.instances, Vec::<String>::new(), "no claim of this cluster was ever seen");
    }
}

/// However late it comes up, and however a pass falls: 3 min are given to an instance without a claim, and a watch may be a minute behind.
#[test]
fn what_is_left_over_late_is_collected_soon_and_what_stays_is_not_looked_at_for_ever() {
    let claims = [wish("a", None)];
    let mut collector = Collector::default();
    let mut pass = |time: i64, seen: &[Listed]| {
        let found = collector.pass(&witnesses(seen, &claims, true), second(time)).instances;
        (found.len(), i64::try_from(collector.next_pause().as_secs()).unwrap())
    };
    let (mut time, mut quick) = (0, 0);
    while time < 7200 {
        let (found, pause) = pass(time, &[]);
        assert_eq!(found, 0);
        (time, quick) = (time + pause, quick + i64::from(pause == 10));
    }
    assert_eq!(quick, 20, "after the start");
    // it came up right behind the last pass
    let left = [listed("i-1", None)];
    let (since, mut pauses) = (time - 60, Vec::new());
    let collected = loop {
        let (found, pause) = pass(time, &left);
        if found > 0 {
            break time;
        }
        pauses.push(pause);
        time += pause;
    };
    assert!(collected - since <= 120, "after {} s", collected - since);
    assert_eq!(pauses, [10, 10, 10]);
    // EC2 refuses to end it
    let later: Vec<i64> = (0..40).map(|n| pass(collected + n, &left).1).collect();
    assert_eq!((later[0], later[39]), (10, 60));
}

#[test]
fn a_second_instance_of_a_claim_is_collected_and_the_one_it_goes_by_never() {
    let mut collector = Collector::default();
    let instances = ["i-1", "i-2"].map(|id| listed(&format!("aws:///us-east-1a/{id}"), Some("a")));
    // the answer to its launch told no zone
    let claims = [wish("a", Some("aws:////i-1"))];
    let mut pass = |time: i64| collector.pass(&witnesses(&instances, &claims, true), second(time)).instances;
    assert!(pass(0).is_empty() && pass(10).is_empty());
    assert_eq!(pass(30), ["aws:///us-east-1a/i-2"]);
    let waiting = [wish("a", None)];
    let mut collector = Collector::default();
    for time in [0, 30, 60] {
        let found = collector.pass(&witnesses(&instances, &waiting, true), second(time));
        assert!(found.instances.is_empty(), "its lifecycle adopts one and ends the other");
    }
}

#[test]
fn a_claim_is_collected_when_its_instance_is_missing_twice_and_its_node_agrees() {
    let mut collector = Collector::default();
    let claims = [wish("a", Some("i-1")), wish("b", Some("i-2")), wish("c", None)];
    let instances = [listed("i-2", Some("b"))];
    let mut pass = |ready: bool| {
        let found = collector.pass(&witnesses(&instances, &claims, ready), at(NOW)).claims;
        found.iter().map(|claim| claim.metadata.name.clone().unwrap()).collect::<Vec<_>>()
    };
    assert!(pass(false).is_empty());
    assert!(pass(true).is_empty(), "the node is ready");
    assert!(pass(false).is_empty(), "counted anew");
    assert_eq!(pass(false), ["a"]);
}

#[test]
fn an_instance_that_is_listed_without_its_zone_is_not_missing() {
    let told = [("aws:///us-east-1a/i-1", "aws:////i-1"), ("aws:////i-1", "aws:///us-east-1a/i-1")];
    for (known, shown) in told {
        let (claims, instances) = ([wish("a", Some(known))], [listed(shown, Some("a"))]);
        let mut collector = Collector::default();
        for time in [0, 10, 20] {
            let found = collector.pass(&witnesses(&instances, &claims, false), second(time));
            assert!(found.claims.is_empty(), "{known} is {shown}");
        }
    }
}

#[test]
fn an_instance_whose_node_was_never_seen_is_not_missed_before_it_must_be_listed() {
    let missed = |up_to: &[&str]| {
        let mut claim = claim_with(up_to);
        let conditions = &mut claim.status.as_mut().unwrap().conditions;
        conditions.iter_mut().for_each(|one| one.last_transition_time = at(NOW));
        let claims = [Arc::new(claim)];
        let mut collector = Collector::default();
        let mut found = |time: i64| collector.pass(&witnesses(&[], &claims, false), second(time)).claims.len();
        [found(10), found(20), found(119), found(120), found(130)]
    };
    assert_eq!(missed(&["Launched"]), [0, 0, 0, 0, 1]);
    assert_eq!(missed(&["Launched", "Registered"]), [0, 1, 1, 1, 1], "EC2 has listed it before");
}

#[test]
fn a_claim_whose_node_does_not_come_back_is_collected_after_its_time() {
    let (_, mut claim) = pair(&[], &[]);
    let status = claim.status.as_mut().unwrap();
    conditions::set(&mut status.conditions, conditions::REGISTERED, ConditionStatus::Unknown, "", "", at(NOW));
    let instances = [listed(&status.provider_id.clone().unwrap(), Some("default-n1"))];
    let claims = [Arc::new(claim)];
    let seen = witnesses(&instances, &claims, false);
    let found = |time: i64| Collector::default().pass(&seen, second(time)).claims.len();
    assert_eq!((found(899), found(900)), (0, 1));
}

#[test]
fn nothing_big_is_collected_in_silence() {
    let claims: Vec<_> = (0..60).map(|n| wish(&format!("c{n}"), Some(&format!("i-{n}")))).collect();
    let mut collector = Collector::default();
    collector.pass(&witnesses(&[], &claims, false), at(NOW));
    let all = collector.pass(&witnesses(&[], &claims, false), at(NOW));
    assert!(all.claims.is_empty());
    let blocked = all.blocked.expect("sixty at once");
    assert_eq!((blocked.claims, blocked.bound, blocked.instances), (60, 6, 0));
}

proptest! {
    #[test]
    fn a_look_is_never_in_the_past_and_steps_never_panic(
        ready in any::<bool>(), there in any::<bool>(), deep in 0_usize..4, seconds in -4000_i64..40_000,
        quiet in prop::option::of(0_i64..90_000)
    ) {
        let said = if ready { "True" } else { "False" };
        let (node, _) = pair(&[("status.conditions", json!([{"type": "Ready", "status": said}]))], &[]);
        let claim = claim_with(&["Launched", "Registered", "Initialized"][..deep]);
        let now = second(seconds);
        let found = next(&claim, Some(&node).filter(|_| there), quiet.map(SignedDuration::from_secs), now);
        prop_assert!(found.look.is_none_or(|look| look >= now));
    }
}
