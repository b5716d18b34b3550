//! Named edits of a pool and its class on forty nodes: the words of the plan's warning, and the same as data, kept for review in
//! `snapshots`. They are written anew with `INSTA_UPDATE=always`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use karp_domain::api::Ec2NodeClass;
use serde_json::json;
use tfplugin::{Diagnostic, Value};

use super::forty::edits::{Edit, OF_CLASS, OF_POOL};
use super::forty::{self, Cluster, NODES, class, pool};
use super::selection::Selection;
use super::*;
use crate::data_sources::disruption_preview::answer;

/// Compares a text with the one that was reviewed, and tells where they differ. The files are in the form of `insta`.
fn reviewed(name: &str, about: &str, text: &str) -> Option<String> {
    let path = format!("{}/src/preview/snapshots/{name}.snap", env!("CARGO_MANIFEST_DIR"));
    let kept =
        format!("---\nsource: provider/src/preview/golden.rs\ndescription: {about}\nexpression: text\n---\n{text}");
    if std::env::var("INSTA_UPDATE").is_ok_and(|wish| wish == "always") {
        std::fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("made");
        std::fs::write(&path, &kept).expect("written");
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    (before != kept).then(|| format!("{path} has\n{before}\nand it is now\n{kept}"))
}

fn written(warning: &Diagnostic) -> String {
    format!("Warning: {}\n\n{}\n\n", warning.summary, warning.detail)
}

/// Writes what `karp_disruption_preview` answers, nodes of one kind on one line.
fn data(before: Option<&Offer>, after: &Offer, impact: &Impact) -> String {
    let told = answer(Value::object::<&str, Value>([]), before.cloned(), after, impact).expect("data");
    let (count, price) = (|name: &str| told.get(name).as_i64(), |name: &str| told.get(name).as_f64());
    let drifting = told.get("drifting").as_list();
    let numbers = json!({
        "types_before": count("types_before"), "types_after": count("types_after"),
        "cheapest_price": price("cheapest_price"), "typical_price": price("typical_price"),
        "nodes": count("nodes"), "at_once": count("at_once"), "waves": count("waves"), "drifting": drifting.len(),
    });
    let mut text = String::new();
    for (name, value) in numbers.as_object().expect("fields") {
        writeln!(text, "{name} = {value}").expect("written");
    }
    let mut kinds: BTreeMap<[&str; 2], Vec<&str>> = BTreeMap::new();
    for node in drifting {
        let [reason, blocked_by, name] =
            ["reason", "blocked_by", "name"].map(|name| node.get(name).as_str().unwrap_or_default());
        kinds.entry([reason, blocked_by]).or_default().push(name);
    }
    for ([reason, blocked_by], names) in kinds {
        let blocked_by = if blocked_by.is_empty() { String::new() } else { format!(", blocked_by {blocked_by:?}") };
        writeln!(text, "reason {reason:?}{blocked_by}: {}", names.join(" ")).expect("written");
    }
    let turn = |turn: &Turn| (Some(turn.at.to_string()), Some(i64::from(turn.at_once)));
    let turns = told.get("timeline").as_list().iter();
    let turns = turns.map(|turn| (turn.get("at").as_str().map(str::to_owned), turn.get("at_once").as_i64()));
    assert_eq!(turns.collect::<Vec<_>>(), impact.timeline.iter().map(turn).collect::<Vec<_>>());
    text
}

#[test]
fn edits_of_the_pool_are_told_as_reviewed() {
    let forty = Cluster::of(NODES, 1);
    let told = |edit: &Edit| {
        let seen = forty.preview(&pool(edit.change));
        let data = data(seen.before.as_ref(), &seen.after, seen.impact.as_ref().expect("nodes"));
        reviewed(edit.name, edit.about, &(written(&seen.warning("default")) + &data))
    };
    assert_eq!(OF_POOL.iter().filter_map(told).collect::<Vec<_>>().join("\n"), "");
}

#[test]
fn edits_of_the_class_are_told_as_reviewed() {
    let forty = Cluster::of(NODES, 1);
    let told = |edit: &Edit| {
        let seen = forty.preview_class(&class(edit.change));
        let data = data(seen.before.as_ref(), &seen.after, &seen.impact);
        reviewed(edit.name, edit.about, &(written(&class_warning("default", Ok(seen))) + &data))
    };
    assert_eq!(OF_CLASS.iter().filter_map(told).collect::<Vec<_>>().join("\n"), "");
}

#[test]
fn selectors_that_were_looked_up_are_told_as_reviewed() {
    let before = forty::read(json!({
        "amis": [{ "id": "ami-0a", "requirements": [] }],
        "subnets": [{ "id": "subnet-a", "zone": "us-east-1a" }, { "id": "subnet-b", "zone": "us-east-1b" }, { "id": "subnet-c", "zone": "us-east-1c" }],
    }));
    let image = forty::read(json!({ "id": "ami-0b", "requirements": [] }));
    let subnets =
        forty::read(json!([{ "id": "subnet-a", "zone": "us-east-1a" }, { "id": "subnet-b", "zone": "us-east-1b" }]));
    let selection = Selection { before, images: Some(vec![image]), ..Selection::default() };
    let (images, subnets) = (selection.clone(), Selection { images: None, subnets: Some(subnets), ..selection });
    let newer = class(|class| class["spec"]["amiSelectorTerms"] = json!([{ "alias": "al2023@v20261115" }]));
    let fewer = class(|class| class["spec"]["subnetSelectorTerms"] = json!([{ "tags": { "tier": "nodes" } }]));
    let cases = [
        ("class_image_found", "the class selects a newer image, and AWS tells which", newer, images),
        ("class_subnets_found", "the class selects one subnet less, and AWS tells which", fewer, subnets),
    ];
    let forty = Cluster::of(NODES, 1);
    let told = |(name, about, after, selection): &(&str, &str, Ec2NodeClass, Selection)| {
        let seen = forty.preview_selection(after, selection);
        let data = data(seen.before.as_ref(), &seen.after, &seen.impact);
        reviewed(name, about, &(written(&class_warning("default", Ok(seen))) + &data))
    };
    assert_eq!(cases.iter().filter_map(told).collect::<Vec<_>>().join("\n"), "");
}

#[test]
fn new_pool() {
    let pool = pool(|pool| pool["metadata"]["name"] = json!("new"));
    let requirements = &karp_domain::cluster::Pool::from_kube(&pool).expect("readable").requirements;
    let seen = Preview { after: offer(requirements), ..Preview::default() };
    let data = data(None, &seen.after, &Impact::default());
    let told =
        reviewed("new_pool", "a pool is made, from the catalogue alone", &(written(&seen.warning("new")) + &data));
    assert_eq!(told, None);
}

#[test]
fn what_another_takes_the_place_of_is_told_as_reviewed() {
    let of = |kind, because: &str, ending, nodes| Replaced {
        kind,
        name: "default".to_owned(),
        because: vec![because.to_owned()],
        ending,
        nodes: Some(nodes),
    };
    let held = "PodDisruptionBudget shop/database (pod shop/database-0)".to_owned();
    let nodes = |count, at_once| {
        let held = Ok(if count == 0 { String::new() } else { held.clone() });
        Ok(Nodes { count, at_once, held })
    };
    let blind = Ok(Nodes { count: 40, at_once: Some(40), held: Err(TOO_LONG.to_owned()) });
    let (pool, class) = ("NodePool", "EC2NodeClass");
    let (drained, late) = (Ending::Drained, TOO_LONG.to_owned());
    let cases = [
        ("pool_renamed", "the pool gets another name", of(pool, "name", drained, nodes(40, Some(4))), "other"),
        (
            "pool_renamed_shut",
            "the same where budgets let none go",
            of(pool, "name", drained, nodes(40, Some(0))),
            "other",
        ),
        ("pool_renamed_blind", "what holds pods is late", of(pool, "name", drained, blind), "other"),
        ("pool_renamed_empty", "the same without nodes", of(pool, "name", drained, nodes(0, Some(1))), "other"),
        ("pool_renamed_unseen", "the same without an answer", of(pool, "name", drained, Err(late)), "other"),
        ("pool_made_static", "nothing drains it", of(pool, "replicas", Ending::Hurried, nodes(1, None)), "default"),
        (
            "class_renamed",
            "the class gets another name",
            of(class, "name", Ending::AwaitedBy, nodes(40, None)),
            "other",
        ),
    ];
    let requirements = &karp_domain::cluster::Pool::from_kube(&forty::pool(|_| {})).expect("readable").requirements;
    let offer = offer(requirements);
    let told = |(name, about, replaced, heir): &(&str, &str, Replaced, &str)| {
        let warning = replaced.warning(heir, (replaced.kind == "NodePool").then_some(&offer));
        reviewed(name, about, &written(&warning))
    };
    assert_eq!(cases.iter().filter_map(told).collect::<Vec<_>>().join("\n"), "");
}

/// How long this thread has had a processor, so that what else the machine does is not counted; nothing where the system does not tell.
fn worked() -> Option<Duration> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    told.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[test]
fn a_thousand_nodes_take_a_moment() {
    let cluster = Cluster::of(1_000, 30);
    let label = pool(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
    let kubelet = class(|class| class["spec"]["kubelet"]["maxPods"] = json!(110));
    let before = worked();
    let (seen, of_class) = (cluster.preview(&label), cluster.preview_class(&kubelet));
    let texts = (seen.warning("default"), class_warning("default", Ok(of_class)));
    let took = worked().zip(before).map(|(after, before)| after - before);
    eprintln!("two previews of 1,000 nodes with 31,000 pods: {took:?} of a processor");
    assert!(texts.0.summary.ends_with("1000 of 1000 nodes will be replaced"), "{}", texts.0.summary);
    assert!(texts.1.summary.ends_with("1000 of 1000 nodes will be replaced"), "{}", texts.1.summary);
    // Both, in a build that is not optimised; what the API server takes is measured by the edge test.
    assert!(took.is_none_or(|took| took < PATIENCE), "{took:?}");
}

#[test]
fn forty_nodes_are_of_several_kinds() {
    let cluster = Cluster::of(NODES, 1);
    let kinds = |key: &str| {
        let of =
            |claim: &karp_domain::api::NodeClaim| claim.metadata.labels.as_ref().and_then(|own| own.get(key).cloned());
        cluster.claims.iter().filter_map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    let keys = ["node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "karpenter.sh/capacity-type"];
    assert_eq!((keys.map(kinds), cluster.around.nodes.len()), ([5, 3, 2], NODES - 1));
    assert_eq!(
        cluster.preview(&pool(|_| {})).impact.expect("nodes").drifting,
        [],
        "stamped as the controller stamps, at {}",
        forty::now()
    );
}
