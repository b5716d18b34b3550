//! Named edits of a pool and its class on forty nodes: the words of the plan's warning, and the same as data, kept for review in
//! `snapshots`. They are written anew with `INSTA_UPDATE=always`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use karp_domain::api::{Ec2NodeClass, NodePool};
use karp_domain::catalogue::Price;
use serde_json::{Value as Json, json};
use tfplugin::Diagnostic;

use super::forty::{self, Cluster, NODES, class, pool};
use super::*;

/// Compares a text with the one that was reviewed. The files are in the form of `insta`.
fn reviewed(name: &str, about: &str, text: &str) {
    let path = format!("{}/src/preview/snapshots/{name}.snap", env!("CARGO_MANIFEST_DIR"));
    let kept =
        format!("---\nsource: provider/src/preview/golden.rs\ndescription: {about}\nexpression: text\n---\n{text}");
    if std::env::var("INSTA_UPDATE").is_ok_and(|wish| wish == "always") {
        std::fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("made");
        std::fs::write(&path, &kept).expect("written");
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(before == kept, "{path} has\n{before}\nand it is now\n{kept}");
}

fn written(warning: &Diagnostic) -> String {
    format!("Warning: {}\n\n{}\n\n", warning.summary, warning.detail)
}

/// Writes what `karp_disruption_preview` answers, nodes of one kind on one line.
fn data(before: Option<&Offer>, after: &Offer, impact: &Impact) -> String {
    let price = |price: Option<Price>| price.map(Price::dollars);
    let numbers = json!({
        "types_before": before.map(|before| before.types), "types_after": after.types,
        "cheapest_price": price(after.cheapest), "typical_price": price(after.typical),
        "nodes": impact.total, "at_once": impact.at_once, "waves": impact.waves, "drifting": impact.drifting.len(),
    });
    let mut text = String::new();
    for (name, value) in numbers.as_object().expect("fields") {
        writeln!(text, "{name} = {value}").expect("written");
    }
    let mut kinds: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    for node in &impact.drifting {
        let told = serde_json::to_value(node).expect("data");
        let field = |name: &str| told[name].as_str().map_or_else(String::new, str::to_owned);
        kinds.entry((field("reason"), field("blocked_by"))).or_default().push(&node.name);
    }
    for ((reason, blocked_by), names) in kinds {
        let blocked_by = if blocked_by.is_empty() { blocked_by } else { format!(", blocked_by {blocked_by:?}") };
        writeln!(text, "reason {reason:?}{blocked_by}: {}", names.join(" ")).expect("written");
    }
    text
}

fn check(name: &str, about: &str, after: &NodePool) {
    let seen = Cluster::of(NODES, 1).preview(after);
    let data = data(seen.before.as_ref(), &seen.after, seen.impact.as_ref().expect("nodes"));
    reviewed(name, about, &(written(&seen.warning("default")) + &data));
}

fn check_class(name: &str, about: &str, after: &Ec2NodeClass) {
    let seen = Cluster::of(NODES, 1).preview_class(after);
    let data = data(seen.before.as_ref(), &seen.after, &seen.impact);
    reviewed(name, about, &(written(&class_warning("default", Ok(seen))) + &data));
}

fn require(pool: &mut Json, key: &str, values: &[&str]) {
    let requirements = pool["spec"]["template"]["spec"]["requirements"].as_array_mut().expect("a list");
    requirements.retain(|one| one["key"] != key);
    requirements.push(json!({ "key": key, "operator": "In", "values": values }));
}

#[test]
fn narrower_families() {
    let after = pool(|pool| require(pool, "karpenter.k8s.aws/instance-family", &["m7i", "r7i"]));
    check("narrower_families", "a requirement on the family leaves out c7i", &after);
}

#[test]
fn other_architecture() {
    let after = pool(|pool| require(pool, "kubernetes.io/arch", &["arm64"]));
    check("other_architecture", "amd64 becomes arm64", &after);
}

#[test]
fn label_added() {
    let after = pool(|pool| pool["spec"]["template"]["metadata"]["labels"]["tier"] = json!("gold"));
    check("label_added", "the template gets one label more", &after);
}

#[test]
fn taint_added() {
    let taint = json!([{ "key": "team", "value": "a", "effect": "NoSchedule" }]);
    let after = pool(|pool| pool["spec"]["template"]["spec"]["taints"] = taint.clone());
    check("taint_added", "the template gets a taint", &after);
}

#[test]
fn other_lifetime() {
    let after = pool(|pool| pool["spec"]["template"]["spec"]["expireAfter"] = json!("168h"));
    check("other_lifetime", "only expireAfter is changed, which is hashed", &after);
}

#[test]
fn other_weight_and_limits() {
    let after = pool(|pool| {
        pool["spec"]["weight"] = json!(50);
        pool["spec"]["limits"] = json!({ "cpu": "100", "nodes": "60" });
    });
    check(
        "other_weight_and_limits",
        "weight and limits are changed; the nodes have more cpu than the new limit",
        &after,
    );
}

#[test]
fn other_budgets() {
    let after = pool(|pool| pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "25%" }]));
    check("other_budgets", "only the budgets are changed", &after);
}

#[test]
fn other_consolidation() {
    let after = pool(|pool| pool["spec"]["disruption"]["consolidationPolicy"] = json!("WhenEmpty"));
    check("other_consolidation", "only the consolidation policy is changed", &after);
}

#[test]
fn spot_removed() {
    let after = pool(|pool| require(pool, "karpenter.sh/capacity-type", &["on-demand"]));
    check("spot_removed", "spot is not allowed any more", &after);
}

#[test]
fn zone_removed() {
    let after = pool(|pool| require(pool, "topology.kubernetes.io/zone", &["us-east-1a", "us-east-1b"]));
    check("zone_removed", "one of three zones is not allowed any more", &after);
}

#[test]
fn no_type_left() {
    let after = pool(|pool| require(pool, "karpenter.k8s.aws/instance-family", &["m99"]));
    check("no_type_left", "a requirement that no type matches", &after);
}

#[test]
fn nothing_may_go() {
    let after = pool(|pool| {
        pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b");
        pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "0" }]);
    });
    check("nothing_may_go", "a label is changed, and the budget is 0", &after);
}

#[test]
fn new_pool() {
    let pool = pool(|pool| pool["metadata"]["name"] = json!("new"));
    let requirements = &karp_domain::cluster::Pool::from_kube(&pool).expect("readable").requirements;
    let seen = Preview { after: offer(requirements), ..Preview::default() };
    let data = data(None, &seen.after, &Impact::default());
    reviewed("new_pool", "a pool is made, from the catalogue alone", &(written(&seen.warning("new")) + &data));
}

#[test]
fn class_kubelet() {
    let after = class(|class| class["spec"]["kubelet"]["maxPods"] = json!(110));
    check_class("class_kubelet", "nodes get more pods by the class's kubelet", &after);
}

#[test]
fn class_image() {
    let after = class(|class| class["spec"]["amiSelectorTerms"] = json!([{ "alias": "al2023@v20261115" }]));
    check_class("class_image", "the class selects a newer image", &after);
}

#[test]
fn class_security_groups() {
    let terms = json!([{ "tags": { "karpenter.sh/discovery": "demo", "tier": "nodes" } }]);
    let after = class(|class| class["spec"]["securityGroupSelectorTerms"] = terms.clone());
    check_class("class_security_groups", "the class selects security groups by one tag more", &after);
}

#[test]
fn class_enclaves() {
    let after = class(|class| class["spec"]["enclaveOptions"] = json!({ "enabled": true }));
    check_class("class_enclaves", "nodes may run enclaves, which not every type can", &after);
}

#[test]
fn a_thousand_nodes_take_a_moment() {
    let cluster = Cluster::of(1_000, 30);
    let label = pool(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
    let kubelet = class(|class| class["spec"]["kubelet"]["maxPods"] = json!(110));
    let started = std::time::Instant::now();
    let (seen, of_class) = (cluster.preview(&label), cluster.preview_class(&kubelet));
    let texts = (seen.warning("default"), class_warning("default", Ok(of_class)));
    let took = started.elapsed();
    eprintln!("two previews of 1,000 nodes with 31,000 pods: {took:?}");
    assert!(texts.0.summary.ends_with("1000 of 1000 nodes will be replaced"), "{}", texts.0.summary);
    assert!(texts.1.summary.ends_with("1000 of 1000 nodes will be replaced"), "{}", texts.1.summary);
    assert!(took < PATIENCE / 2, "{took:?}");
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
