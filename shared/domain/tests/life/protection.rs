//! How the wish of a pod's owner that it is left alone is read, and what the owner hears of it.

use jiff::SignedDuration;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{DoNotDisrupt, Pod, Protection};
use karp_domain::disruption::{Cause, KeepReason, Verdict, plan_disruption, wishes};
use serde_json::{Value, json};

use crate::world::{NOW, TYPES, at, catalogue, class, node, pool, running, snapshot, with};

/// A pod that runs since 10:00 and bears the annotation.
fn asking(name: &str, node: &str, wish: &str) -> Value {
    let wish = json!({"karpenter.sh/do-not-disrupt": wish});
    with(running(name, node, "1", "1Gi"), &[("metadata.annotations", wish)])
}

fn read(object: Value) -> Pod {
    Pod::from_kube(&serde_json::from_value(object).unwrap()).unwrap()
}

#[test]
fn times_are_read_as_go_writes_them() {
    let times = [
        ("90s", 90),
        ("5m", 300),
        ("1h", 3600),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2h45m30s", 9930),
        ("+.5h", 1800),
        ("60000ms", 60),
    ];
    for (text, seconds) in times {
        let wanted = DoNotDisrupt::For(SignedDuration::from_secs(seconds));
        assert_eq!(DoNotDisrupt::read(Some(text)), wanted, "{text}");
    }
    assert_eq!(DoNotDisrupt::read(Some("true")), DoNotDisrupt::Always);
    // nobody who writes this wonders why the pod is not protected
    assert_eq!(DoNotDisrupt::read(Some("false")), DoNotDisrupt::No);
    assert_eq!(DoNotDisrupt::read(None), DoNotDisrupt::No);
    // as in Karpenter, a time has to be above zero
    for text in ["ture", "True", "forever", "1d", "1.5", "", " 1h", "0", "0s", "-1h", "99999999h"] {
        assert_eq!(DoNotDisrupt::read(Some(text)), DoNotDisrupt::Unclear(text.into()), "{text}");
    }
}

#[test]
fn a_wish_stands_until_its_time_is_over() {
    let (pod, end) = (read(asking("p", "n1", "1.5h")), at("2026-11-21T11:30:00Z"));
    let before = end - SignedDuration::from_secs(1);
    assert_eq!(pod.protection(before), Protection::Until(Some(end)));
    assert_eq!(pod.protection(end), Protection::Over(end));
    assert!(pod.is_protected(before) && !pod.is_protected(end));
    let unclear = read(asking("p", "n1", "ture"));
    assert_eq!(unclear.protection(end), Protection::Unclear("ture"));
    assert!(!unclear.is_protected(end));
    let told =
        [Protection::Until(Some(end)), Protection::Over(end), unclear.protection(end)].map(|one| one.to_string());
    assert_eq!(
        told,
        [
            "karpenter.sh/do-not-disrupt leaves the pod alone until 2026-11-21T11:30:00Z",
            "karpenter.sh/do-not-disrupt left the pod alone until 2026-11-21T11:30:00Z: it may be disrupted now",
            "karpenter.sh/do-not-disrupt has no effect: \"ture\" is neither true nor a time above zero, such as 30m or 1h30m",
        ]
    );
}

#[test]
fn owners_hear_of_wishes_that_a_plan_meets() {
    let mut objects = vec![class(), pool("default", json!([]))];
    for name in ["n1", "n2", "n3"] {
        objects.extend(node(name, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let over = |name: &str| asking(name, "n2", "1h");
    objects.extend([
        asking("until", "n1", "2.5h"),
        // one pod a node is enough to keep it
        asking("until-too", "n1", "3h"),
        over("long-over"),
        asking("just-over", "n2", "119m"),
        asking("unclear", "n2", "forever"),
        asking("declined", "n2", "false"),
        with(asking("done", "n2", "ture"), &[("status.phase", json!("Succeeded"))]),
        with(asking("going", "n2", "ture"), &[("metadata.deletionTimestamp", json!("2026-11-21T12:00:30Z"))]),
        asking("always", "n3", "true"),
        asking("foreign", "elsewhere", "ture"),
    ]);
    let snapshot = snapshot(&objects, catalogue(TYPES));
    let plan = plan_disruption(&snapshot);
    let mut told: Vec<_> = wishes(&snapshot, &plan).into_iter().map(|(pod, wish)| (&*pod.key.name, wish)).collect();
    told.sort_by_key(|(name, _)| *name);
    let kept = plan.verdicts.iter().find_map(|(candidate, verdict)| match verdict {
        Verdict::Keep(KeepReason::PodProtected { pod }) if candidate.node.as_deref() == Some("n1") => Some(&*pod.name),
        _ => None,
    });
    assert_eq!(kept, Some("until"));
    let wanted = [
        ("just-over", Protection::Over(at("2026-11-21T11:59:00Z"))),
        ("unclear", Protection::Unclear("forever")),
        ("until", Protection::Until(Some(at("2026-11-21T12:30:00Z")))),
    ];
    assert_eq!(told, wanted);
    assert!(at(NOW) > at("2026-11-21T11:59:00Z"));
}

/// A pod whose data is on a disk of its node can run nowhere else: cheaper nodes are no reason to lose it, and drift is.
#[test]
fn data_on_a_disk_of_a_node_keeps_it_from_consolidation_alone() {
    let spec = json!({"local": {"path": "/mnt/disks/ssd0"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}}});
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let [host, claim] = node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    let drifted = json!({"type": "Drifted", "status": "True", "reason": "NodePoolDrifted", "message": "",
        "lastTransitionTime": "2026-11-21T11:00:00Z"});
    let mut objects = vec![
        class(),
        pool("default", json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}])),
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": spec}),
        host,
        claim,
        with(running("db", "n1", "500m", "1Gi"), &[("spec.volumes", volumes)]),
    ];
    let decided = |objects: &[Value]| plan_disruption(&snapshot(objects, catalogue(TYPES)));
    let plan = decided(&objects);
    let [(_, Verdict::Keep(reason))] = plan.verdicts.as_slice() else { panic!("{:?}", plan.verdicts) };
    assert!(matches!(reason, KeepReason::LocalVolume { .. }), "{reason}");
    assert_eq!(reason.to_string(), "the data of pod default/db is on a disk of the node (claim data)");
    objects[5]["status"]["conditions"].as_array_mut().expect("conditions").push(drifted);
    let plan = decided(&objects);
    assert!(matches!(plan.verdicts[0].1, Verdict::Replace(Cause::Drifted, _)), "{:?}", plan.verdicts);
}

/// As in Karpenter: what has not started has its time before it.
#[test]
fn a_time_begins_when_the_pod_starts() {
    let wish = json!({"karpenter.sh/do-not-disrupt": "5m"});
    let waiting = with(
        running("p", "n1", "1", "1Gi"),
        &[("metadata.annotations", wish), ("status", json!({"phase": "Pending"}))],
    );
    let late = at(NOW) + SignedDuration::from_hours(10);
    assert_eq!(read(waiting).protection(late), Protection::Until(None));
}
