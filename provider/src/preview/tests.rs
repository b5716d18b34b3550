//! Rules of the preview, one by one; whole texts are in `golden`.

use jiff::Timestamp;
use karp_domain::api::{Ec2NodeClassStatus, NodeClaim, NodePool, labels};
use karp_domain::cluster::{Node, Pool};
use serde_json::{Value as Json, json};

use super::forty::{Cluster, NODES, class, now, pod, pool, read};
use super::selection::Selection;
use super::*;

/// Changes one claim of the forty.
fn edit(cluster: &mut Cluster, at: usize, change: impl Fn(&mut Json)) {
    let mut claim = serde_json::to_value(&cluster.claims[at]).expect("an object");
    change(&mut claim);
    cluster.claims[at] = read(claim);
}

fn forty() -> Cluster {
    Cluster::of(NODES, 1)
}

fn another_label() -> NodePool {
    pool(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"))
}

/// The pool with these requirements alone: a label, and the values that it may have.
fn asking(asked: &[(&str, &[&str])]) -> NodePool {
    let one = |(key, values): &(&str, &[&str])| json!({ "key": key, "operator": "In", "values": values });
    let all: Vec<Json> = asked.iter().map(one).collect();
    pool(|pool| pool["spec"]["template"]["spec"]["requirements"] = json!(all))
}

fn on_demand() -> NodePool {
    asking(&[(labels::CAPACITY_TYPE, &["on-demand"])])
}

fn become_drifted(claim: &mut Json, reason: &str) {
    let drifted =
        json!({ "type": "Drifted", "status": "True", "reason": reason, "message": "", "lastTransitionTime": now() });
    claim["status"]["conditions"].as_array_mut().expect("a list").push(drifted);
}

fn seen(cluster: &Cluster, after: &NodePool) -> Impact {
    cluster.preview(after).impact.expect("nodes")
}

#[test]
fn more_room_replaces_nothing_and_is_told() {
    let wider =
        pool(|pool| pool["spec"]["template"]["spec"]["requirements"].as_array_mut().expect("a list").truncate(1));
    let seen = forty().preview(&wider);
    assert_eq!(seen.impact.as_ref().expect("nodes").drifting, []);
    let warning = seen.warning("default");
    assert!(warning.summary.ends_with("0 of 40 nodes will be replaced"), "{}", warning.summary);
    assert!(warning.detail.contains("by this change (template.requirements)"), "{}", warning.detail);
}

#[test]
fn what_has_drifted_already_is_told_apart_and_may_be_mended() {
    let mut cluster = forty();
    edit(&mut cluster, 1, |claim| become_drifted(claim, "AMIDrift"));
    // These are not outside of the pool, and not made by another template than this one: the change mends them.
    edit(&mut cluster, 2, |claim| become_drifted(claim, "RequirementsDrifted"));
    let after = another_label();
    let of_after = karp_domain::api::hash::node_pool(&after.spec);
    edit(&mut cluster, 4, |claim| {
        claim["metadata"]["annotations"][labels::NODE_POOL_HASH] = json!(of_after);
        become_drifted(claim, "NodePoolDrifted");
    });
    let same = seen(&cluster, &pool(|pool| pool["spec"]["weight"] = json!(20)));
    let told: Vec<_> = same.drifting.iter().map(|node| (&*node.name, &*node.reason, node.certainty)).collect();
    let already = Certainty::Already;
    assert_eq!(told, [("node-01", "AMIDrift", already), ("node-04", "NodePoolDrifted", already)]);
    let label = seen(&cluster, &after);
    assert_eq!(label.drifting.len(), NODES - 1, "made by the same template as will be");
    let count = |of| label.drifting.iter().filter(|node| node.certainty == of).count();
    assert_eq!((count(Certainty::Already), count(Certainty::Sure)), (2, NODES - 3));
    let text = cluster.preview(&after).warning("default").detail;
    assert!(text.contains("\n2 of them drifted before this change."), "{text}");
}

#[test]
fn a_node_that_is_going_is_not_counted_twice() {
    let mut cluster = forty();
    edit(&mut cluster, 5, |claim| claim["metadata"]["deletionTimestamp"] = json!(now()));
    edit(&mut cluster, 6, |claim| {
        let going = json!({ "type": "DisruptionReason", "status": "True", "reason": "Underutilized", "message": "", "lastTransitionTime": now() });
        claim["status"]["conditions"].as_array_mut().expect("a list").push(going);
    });
    let impact = seen(&cluster, &another_label());
    assert_eq!((impact.total, impact.leaving, impact.drifting.len(), impact.waves), (40, 2, 38, Some(10)));
    assert!(cluster.preview(&another_label()).warning("default").detail.contains("On their way out already: 2 nodes."));
}

#[test]
fn all_that_blocks_a_node_is_named() {
    let mut cluster = forty();
    let peace = |object: &mut Json| object["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = json!("true");
    edit(&mut cluster, 7, peace);
    edit(&mut cluster, 8, |claim| claim["status"]["conditions"] = json!([]));
    // A daemon is asked, too; pods of a claim with a grace period are not.
    cluster.around.pods.push(pod(9, "shop", "daemon", "database", "DaemonSet", &json!({})));
    edit(&mut cluster, 17, |claim| claim["spec"]["terminationGracePeriod"] = json!("1h"));
    let mut node = json!({ "metadata": { "name": "node-10" } });
    peace(&mut node);
    cluster.around.nodes.push(Node::from_kube(&read(node)).expect("readable"));
    let impact = seen(&cluster, &another_label());
    let blocked = |node: &Drifting| Some(format!("{}: {}", node.name, node.blocked_by.as_ref()?));
    let blocked: Vec<String> = impact.drifting.iter().filter_map(blocked).collect();
    assert_eq!(
        blocked,
        [
            "node-03: PodDisruptionBudget shop/database (pod shop/database-0)",
            "node-07: NodeClaim default-07 (karpenter.sh/do-not-disrupt)",
            "node-08: its Node is not initialized yet",
            "node-09: PodDisruptionBudget shop/database (pod shop/daemon)",
            "node-10: Node node-10 (karpenter.sh/do-not-disrupt)",
            "node-23: pod science/training-7 (karpenter.sh/do-not-disrupt)",
            "default-39: it has no Node yet",
        ]
    );
}

#[test]
fn nodes_of_a_static_pool_are_renewed_as_others_are_while_there_is_room_for_one_more() {
    let fixed = |replicas: usize, nodes: Option<&str>| {
        pool(|pool| {
            pool["spec"]["replicas"] = json!(replicas);
            pool["spec"]["limits"] = nodes.map_or(json!({}), |nodes| json!({ "nodes": nodes }));
            pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b");
        })
    };
    for (room, at_once, waves, told) in [
        (None, 4, 10, "At most 4 may be replaced at a time under the budgets that hold now: 10 waves."),
        (Some("50"), 4, 10, "At most 4 may be replaced at a time under the budgets that hold now: 10 waves."),
        // As many as there is room for beside the replicas.
        (Some("42500m"), 2, 20, "under the budgets that hold now and `limits.nodes` (before, 4): 20 waves."),
        (Some("41"), 1, 40, "under the budgets that hold now and `limits.nodes` (before, 4): 40 waves."),
    ] {
        let seen = forty().preview(&fixed(NODES, room));
        let warning = seen.warning("default");
        assert!(warning.summary.ends_with("40 of 40 nodes will be replaced"), "{}", warning.summary);
        assert!(warning.detail.contains(told), "{}", warning.detail);
        assert!(warning.detail.contains("\nIt is static: its nodes are made, renewed"), "{}", warning.detail);
        let impact = seen.impact.expect("nodes");
        assert_eq!((impact.at_once, impact.waves, impact.resized), (at_once, Some(waves), None));
    }
    let limited = |impact: &Impact, limit: &str| {
        let of_limit = |why: &String| why.contains(&format!("`limits.nodes` is {limit}"));
        impact.drifting.iter().filter(|node| node.blocked_by.as_ref().is_some_and(of_limit)).count()
    };
    let shut = fixed(NODES, Some("40"));
    let impact = seen(&forty(), &shut);
    assert!(impact.drifting.iter().all(|node| node.blocked_by.is_some()));
    assert!(limited(&impact, "40") > 30, "{impact:?}");
    assert_eq!((impact.at_once, impact.waves), (0, None));
    let told = forty().preview(&shut).warning("default").detail;
    assert!(told.contains("The budgets that hold now and `limits.nodes` let none go (before, 4)."), "{told}");
    // Those that are too many go first, and leave room.
    assert_eq!(limited(&seen(&forty(), &fixed(30, Some("40"))), "40"), 0);
    assert!(limited(&seen(&forty(), &fixed(45, Some("45"))), "45") > 30, "it has room until it has its replicas");

    let data = class(|class| class["spec"]["userData"] = json!("x"));
    let pools = [Pool::from_kube(&shut).expect("readable")];
    let of_class = class_impact([&class(|_| {}), &data], &Selection::default(), &pools, &forty().claims, now());
    assert!(limited(&of_class, "40") > 30, "a class is renewed in the same way: {of_class:?}");
    let seen = ClassPreview::of([&class(|_| {}), &data], &Selection::default(), &pools, &forty().claims, now());
    let told = class_warning("default", Ok(seen)).detail;
    assert!(told.contains("The budgets that hold now and `limits.nodes` let none go."), "{told}");
    assert!(told.contains("\nNodes of static pools (default) are renewed only while"), "{told}");
}

#[test]
fn what_another_number_of_replicas_comes_to_is_told() {
    let of = |replicas: usize| {
        let seen = forty().preview(&pool(|pool| pool["spec"]["replicas"] = json!(replicas)));
        seen.warning("default").detail
    };
    for (replicas, told) in [
        (30, "\n`replicas` is 30, and it has 40 that stay: 10 too many, which are given up at once"),
        (45, "\n`replicas` is 45, and it has 40 that stay: 5 too few, which are made as its limits allow"),
    ] {
        assert!(of(replicas).contains(told), "{}", of(replicas));
    }
    assert!(!of(NODES).contains("`replicas` is"), "{}", of(NODES));
}

#[test]
fn a_class_goes_on_in_all_its_pools_at_once() {
    let mut cluster = forty();
    for at in 0..10 {
        edit(&mut cluster, at, |claim| claim["metadata"]["labels"][labels::NODE_POOL] = json!("other"));
    }
    edit(&mut cluster, 10, |claim| claim["metadata"]["labels"][labels::NODE_POOL] = json!("gone"));
    edit(&mut cluster, 11, |claim| {
        claim["metadata"]["annotations"][labels::EC2_NODE_CLASS_HASH_VERSION] = json!("v4");
    });
    let other = pool(|pool| {
        pool["metadata"]["name"] = json!("other");
        pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "2" }]);
    });
    let pools = [pool(|_| {}), other].map(|pool| Pool::from_kube(&pool).expect("readable"));
    let data = class(|class| class["spec"]["userData"] = json!("x"));
    let impact = class_impact([&class(|_| {}), &data], &Selection::default(), &pools, &cluster.claims, now());
    // A stamp of a version that karp does not compute says nothing, and what no pool made is replaced by none.
    assert_eq!((impact.total, impact.drifting.len(), impact.replaced()), (40, 39, (38, 0)));
    assert_eq!((impact.at_once, impact.waves), (3 + 2, Some(10)));
}

#[test]
fn budgets_are_shares_of_all_nodes_of_a_pool_whichever_class_they_are_of() {
    let mut cluster = forty();
    for at in 0..NODES / 2 {
        edit(&mut cluster, at, |claim| claim["spec"]["nodeClassRef"]["name"] = json!("other"));
    }
    let impact = cluster.preview_class(&class(|class| class["spec"]["userData"] = json!("x"))).impact;
    assert_eq!((impact.total, impact.drifting.len(), impact.at_once, impact.waves), (20, 20, 4, Some(5)));
    let later: Vec<u32> = impact.timeline.iter().map(|turn| turn.at_once).collect();
    assert_eq!(later[..2], [0, 4], "shut on Monday by day");
}

#[test]
fn nodes_that_drifted_by_their_class_may_stay_where_it_is_changed_back() {
    let mut cluster = forty();
    for at in 0..3 {
        edit(&mut cluster, at, |claim| become_drifted(claim, "NodeClassDrift"));
    }
    edit(&mut cluster, 3, |claim| become_drifted(claim, "AMIDrift"));
    let counts = |impact: &Impact| {
        let count = |of| impact.drifting.iter().filter(|node| node.certainty == of).count();
        [Certainty::Already, Certainty::Sure, Certainty::Possible].map(count)
    };
    let back = cluster.preview_class(&class(|class| class["spec"]["userData"] = json!("x")));
    assert_eq!(counts(&back.impact), [1, 36, 3]);
    let told = class_warning("default", Ok(back));
    assert!(told.summary.ends_with("37 to 40 of 40 nodes will be replaced"), "{}", told.summary);
    let why = "\nPerhaps drifting: 3 by NodeClassDrift (user_data): node-00, node-01, node-02.\nThose by NodeClassDrift drifted before";
    assert!(told.detail.contains(why), "{}", told.detail);

    // What is not hashed changes nothing of it.
    let after = class(|class| class["spec"]["subnetSelectorTerms"] = json!([{ "tags": { "a": "b" } }]));
    assert_eq!(counts(&cluster.preview_class(&after).impact), [4, 0, 36]);
    // Where a selector finds something else they go all the same.
    let after = class(|class| {
        class["spec"]["userData"] = json!("x");
        class["spec"]["securityGroupSelectorTerms"] = json!([{ "tags": { "a": "b" } }]);
    });
    let one = Selection { before: found(), security_groups: Some(["sg-1".to_owned()].into()), ..Selection::default() };
    assert_eq!(counts(&cluster.preview_selection(&after, &one).impact), [1, 39, 0]);
}

#[test]
fn what_reservations_give_and_what_the_table_does_not_know_can_be_launched_at_a_price_that_is_not_known() {
    let (m7i, named) = (("karpenter.k8s.aws/instance-family", &["m7i"][..]), labels::INSTANCE_TYPE);
    let (bought, reservation) = (labels::CAPACITY_TYPE, (labels::CAPACITY_RESERVATION_ID, &["cr-1"][..]));
    let of = |asked: &[(&str, &[&str])]| forty().preview(&asking(asked)).after;
    let priced = of(&[m7i]);
    assert!(priced.types > 1 && priced.cheapest.is_some(), "{priced:?}");
    assert_eq!(of(&[m7i, (bought, &["reserved", "spot", "on-demand"])]), priced);
    let reserved = Offer { types: priced.types, ..Offer::default() };
    assert_eq!(of(&[m7i, (bought, &["reserved"])]), reserved);
    assert_eq!(of(&[m7i, reservation]), reserved);
    assert_eq!(of(&[m7i, reservation, (bought, &["on-demand"])]), Offer::default(), "no reservation is on demand");

    let newer = vec!["m99.large".to_owned()];
    assert_eq!(of(&[(named, &["m99.large"])]), Offer { types: 1, newer: newer.clone(), ..Offer::default() });
    let both = of(&[(named, &["m7i.large", "m99.large"])]);
    assert_eq!((both.types, both.newer, both.cheapest), (2, newer, of(&[(named, &["m7i.large"])]).cheapest));
    assert_eq!(of(&[(named, &["m99.large"]), (bought, &["spot"]), (bought, &["on-demand"])]).types, 0);

    for (asked, launches) in [
        ((bought, &["reserved"][..]), "instance types, at a price that is not known; before, "),
        (
            (named, &["m99.large"][..]),
            "It may launch 1 instance type, at a price that is not known (karp's table does not know m99.large); before, ",
        ),
    ] {
        let told = forty().preview(&asking(&[asked])).warning("default");
        assert!(told.summary.ends_with("40 of 40 nodes will be replaced"), "{}", told.summary);
        assert!(told.detail.contains(launches) && !told.detail.contains("No node can be made"), "{}", told.detail);
        let pools = [Pool::from_kube(&asking(&[asked])).expect("readable")];
        let data = class(|class| class["spec"]["userData"] = json!("x"));
        let of_class = [&class(|_| {}), &data];
        let seen = ClassPreview::of(of_class, &Selection::default(), &pools, &forty().claims, now());
        let told = class_warning("default", Ok(seen));
        assert!(told.summary.ends_with("40 of 40 nodes will be replaced"), "{}", told.summary);
    }
    let pools = [vec![m7i, (bought, &["reserved"][..])], vec![m7i]]
        .map(|asked| Pool::from_kube(&asking(&asked)).expect("readable"));
    assert_eq!(class_offer(&pools, &class(|_| {}).spec), priced, "a price is known where one of the pools has it");
}

#[test]
fn what_could_not_be_looked_at_is_a_line_of_the_warning() {
    let mut seen = forty().preview(&on_demand());
    seen.impact.as_mut().expect("nodes").unchecked = Some("pods is forbidden".to_owned());
    assert!(seen.warning("default").detail.ends_with("What blocks them could not be looked at: pods is forbidden"));
    let unseen = Preview { impact: None, unseen: Some("it took too long".to_owned()), ..seen };
    assert!(unseen.warning("default").detail.ends_with("Its nodes could not be looked at: it took too long"));
    let class = class_warning("default", Err("it took too long".to_owned()));
    assert_eq!(class.summary, "EC2NodeClass \"default\": its nodes could not be looked at");
}

#[test]
fn budgets_hold_by_the_hour() {
    let tuesday: Timestamp = "2026-11-24T10:00:00Z".parse().expect("a time");
    let (before, after) = (pool(|_| {}), another_label());
    let claims: Vec<NodeClaim> = forty().claims;
    let at = |now| impact(&before, &after, &Pool::from_kube(&after).expect("readable"), &claims, now);
    assert_eq!((at(now()).at_once, at(now()).waves), (4, Some(10)));
    assert_eq!((at(tuesday).at_once, at(tuesday).waves), (0, None));
}

/// What the controller has found for the class: one subnet in each zone, two in the first.
fn found() -> Ec2NodeClassStatus {
    let of = |id: &str, zone: &str| json!({ "id": id, "zone": zone });
    read(json!({
        "amis": [{ "id": "ami-0a", "requirements": [] }],
        "subnets": [of("subnet-a1", "us-east-1a"), of("subnet-a2", "us-east-1a"), of("subnet-b", "us-east-1b"), of("subnet-c", "us-east-1c")],
        "securityGroups": [{ "id": "sg-1" }, { "id": "sg-2" }],
    }))
}

/// How many of the forty surely drift, how many may, and the reason of the first.
fn drifts(terms: &str, selection: &Selection) -> (usize, usize, String) {
    // An alias tells the family, too, which is hashed.
    let term =
        if terms == "amiSelectorTerms" { json!({ "alias": "al2023@latest" }) } else { json!({ "tags": { "a": "b" } }) };
    let after = class(|class| class["spec"][terms] = json!([term]));
    let impact = forty().preview_selection(&after, selection).impact;
    let count = |of| impact.drifting.iter().filter(|node| node.certainty == of).count();
    let reason = impact.drifting.first().map(|node| node.reason.clone()).unwrap_or_default();
    (count(Certainty::Sure), count(Certainty::Possible), reason)
}

#[test]
fn a_node_drifts_by_what_the_selectors_find_and_not_by_how_they_are_written() {
    let zones = forty().claims.iter().fold([0; 3], |mut zones, claim| {
        let zone = &claim.metadata.labels.as_ref().expect("labels")["topology.kubernetes.io/zone"];
        zones[usize::from(zone.as_bytes()[9] - b'a')] += 1;
        zones
    });
    let none = (0, 0, String::new());
    let subnets = |ids: &[&str]| {
        let kept = found().subnets.into_iter().filter(|subnet| ids.contains(&subnet.id.as_str())).collect();
        drifts("subnetSelectorTerms", &Selection { before: found(), subnets: Some(kept), ..Selection::default() })
    };
    assert_eq!(subnets(&["subnet-a1", "subnet-a2", "subnet-b", "subnet-c"]), none, "written otherwise, found the same");
    assert_eq!(subnets(&["subnet-a1", "subnet-a2", "subnet-b"]), (zones[2], 0, "SubnetDrift".to_owned()));
    assert_eq!(
        subnets(&["subnet-a1", "subnet-b", "subnet-c"]),
        (0, zones[0], "SubnetDrift".to_owned()),
        "in one of two"
    );
    assert_eq!(subnets(&[]), none, "a class that finds nothing is broken, and its nodes stay");

    let groups = |ids: &[&str], before: Ec2NodeClassStatus| {
        let security_groups = Some(ids.iter().map(ToString::to_string).collect());
        drifts("securityGroupSelectorTerms", &Selection { before, security_groups, ..Selection::default() })
    };
    assert_eq!(groups(&["sg-2", "sg-1"], found()), none);
    assert_eq!(groups(&["sg-1"], found()), (NODES, 0, "SecurityGroupDrift".to_owned()));
    assert_eq!(groups(&["sg-1"], Ec2NodeClassStatus::default()).1, NODES, "nobody knows what they have");
    assert_eq!(groups(&[], found()), none);

    let images = |ids: &[&str], arch: &str| {
        let only = json!([{ "key": "kubernetes.io/arch", "operator": "In", "values": [arch] }]);
        let images = ids.iter().map(|id| read(json!({ "id": id, "requirements": only }))).collect();
        drifts("amiSelectorTerms", &Selection { before: found(), images: Some(images), ..Selection::default() })
    };
    assert_eq!(images(&["ami-0a", "ami-0b"], "amd64"), none);
    assert_eq!(images(&["ami-0b"], "amd64"), (NODES, 0, "AMIDrift".to_owned()));
    assert_eq!(images(&["ami-0b"], "arm64"), none, "there is no image for these nodes, so they keep theirs");
    assert_eq!(
        drifts("amiSelectorTerms", &Selection::default()),
        (0, NODES, "AMIDrift".to_owned()),
        "AWS was not asked"
    );
}

#[test]
fn a_selector_that_finds_nothing_is_told() {
    let after = class(|class| class["spec"]["subnetSelectorTerms"] = json!([{ "tags": { "typo": "x" } }]));
    let seen = forty()
        .preview_selection(&after, &Selection { before: found(), subnets: Some(Vec::new()), ..Selection::default() });
    let warning = class_warning("default", Ok(seen));
    assert!(warning.summary.ends_with("0 of 40 nodes drift and cannot be replaced"), "{}", warning.summary);
    assert!(
        warning.detail.contains("`subnet_selector_terms` find nothing in AWS: the class will not be ready"),
        "{}",
        warning.detail
    );
}

#[test]
fn what_budgets_will_allow_is_told_for_a_week() {
    let monday: Timestamp = "2026-11-23T10:00:00Z".parse().expect("a time");
    let (before, after) = (pool(|_| {}), another_label());
    let claims = forty().claims;
    let seen = impact(&before, &after, &Pool::from_kube(&after).expect("readable"), &claims, monday);
    let turns: Vec<(String, u32)> = seen.timeline.iter().map(|turn| (turn.at.to_string(), turn.at_once)).collect();
    let day = |day: u32| [(format!("2026-11-{day}T17:00:00Z"), 4), (format!("2026-11-{}T09:00:00Z", day + 1), 0)];
    let friday = [("2026-11-27T17:00:00Z".to_owned(), 4), ("2026-11-30T09:00:00Z".to_owned(), 0)];
    assert_eq!(turns, [&day(23)[..], &day(24), &day(25), &day(26), &friday].concat());
    let warning = Preview { impact: Some(seen), ..forty().preview(&after) }.warning("default");
    let told = "\nThe budgets that hold now let none go; from 2026-11-23T17:00:00Z on, 4 at a time.";
    assert!(warning.detail.contains(told), "{}", warning.detail);

    // Each minute for ten seconds: told as far as it is followed.
    let often = pool(|pool| {
        pool["spec"]["disruption"]["budgets"] =
            json!([{ "nodes": "0", "schedule": "* * * * *", "duration": "10s" }, { "nodes": "3" }]);
    });
    let seen = impact(&before, &often, &Pool::from_kube(&often).expect("readable"), &claims, monday);
    assert_eq!((seen.at_once, seen.timeline.first().map(|turn| turn.at_once)), (0, Some(3)));
    assert!(seen.timeline.len() < 400, "{}", seen.timeline.len());
}

#[test]
fn windows_that_overlap_are_one_and_those_that_have_passed_are_not_counted() {
    let monday: Timestamp = "2026-11-23T10:00:00Z".parse().expect("a time");
    let claims = forty().claims;
    let turns = |budgets: Json| {
        let after = pool(|pool| pool["spec"]["disruption"]["budgets"] = budgets.clone());
        let seen = impact(&pool(|_| {}), &after, &Pool::from_kube(&after).expect("readable"), &claims, monday);
        seen.timeline.iter().map(|turn| (turn.at.to_string(), turn.at_once)).collect::<Vec<_>>()
    };
    let days = |closes: &str, at_once: u32| {
        let day = |(day, next): (u32, u32)| {
            [(format!("2026-11-{day}T{closes}:00Z"), at_once), (format!("2026-11-{next}T09:00:00Z"), 0)]
        };
        [(23, 24), (24, 25), (25, 26), (26, 27), (27, 30)].map(day).concat()
    };
    let by_day = json!({ "nodes": "0", "schedule": "0 9 * * 1-5", "duration": "8h" });
    for (schedule, duration) in
        [("* * * * *", "24h"), ("@hourly", "200h"), ("* * * * *", "1m"), ("@every 1h", "2h"), ("0 0 1 1 *", "99999h")]
    {
        let always = json!({ "nodes": "3", "schedule": schedule, "duration": duration });
        assert_eq!(turns(json!([by_day, always])), days("17:00", 3), "{schedule} for {duration} is always open");
    }
    let each_minute = json!({ "nodes": "0", "schedule": "* 9-16 * * 1-5", "duration": "1h" });
    assert_eq!(turns(json!([each_minute, { "nodes": "3" }])), days("17:59", 3), "the last one opens at 16:59");
}
