//! What others changed in the cluster is shown and put right; what changes in place stays the same object; what cannot change gives way.
//! The resources share their applies, and each step ends on an empty plan.

use serde_json::{Value, json};

use crate::stand::{Cluster, Stand};
use crate::{CRDS, PROVIDER, PROVIDER_OF_DEMO, class, controllers, pool};

/// Plans a step, which must do just this, and applies it; nothing is left to do then.
fn step(stand: &Stand<'_>, action: &str, addresses: &[&str]) {
    let run = stand.apply();
    let mut changes = run.changes();
    changes.sort();
    let wanted = addresses.iter().map(|address| (action.to_owned(), (*address).to_owned()));
    assert_eq!(changes, wanted.collect::<Vec<_>>(), "{}", run.text);
    stand.assert_empty_plan();
}

const OBJECTS: [&str; 2] = ["karp_node_class.it", "karp_node_overlay.it"];

/// A class and an overlay, on inputs that are known after another resource is made.
fn objects(name: &str, tag: &str, price: &str) -> String {
    let class = class(
        name,
        "  tags = { team = terraform_data.tag.output }\n  wait_for_ready = false\n  force_conflicts = true",
    );
    format!(
        r#"{PROVIDER}{CRDS}{class}
resource "terraform_data" "tag" {{
  input = "{tag}"
}}
resource "terraform_data" "price" {{
  input = "{price}"
}}
resource "karp_node_overlay" "it" {{
  name             = "{name}"
  requirements     = [{{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }}]
  price_adjustment = terraform_data.price.output
  force_conflicts  = true
  depends_on       = [karp_crds.this]
}}
"#
    )
}

#[test]
fn what_others_edit_heals_what_changes_stays_and_another_name_gives_way() {
    let Some(cluster) = Cluster::find("what_others_edit_heals_what_changes_stays") else { return };
    let (name, other) = (cluster.unique("edited"), cluster.unique("renamed"));
    let stand = cluster.stand(&objects(&name, "a", "-30%"));
    stand.apply();
    stand.assert_empty_plan();
    let live = || {
        let (class, overlay) = (cluster.get(&["ec2nodeclass", &name]), cluster.get(&["nodeoverlay", &name]));
        let uids = [&class, &overlay].map(|object| object["metadata"]["uid"].clone());
        (uids, class["spec"]["tags"]["team"].clone(), overlay["spec"]["priceAdjustment"].clone())
    };
    let (uids, ..) = live();
    let patch = |kind: &str, spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        cluster.kubectl(&["patch", kind, &name, "--type=merge", "-p", &patch]);
    };
    patch("ec2nodeclass", json!({ "tags": { "team": "theirs" }, "subnetSelectorTerms": [{ "id": "subnet-2" }] }));
    patch("nodeoverlay", json!({ "priceAdjustment": "+1" }));
    step(&stand, "update", &OBJECTS);
    assert_eq!(live(), (uids.clone(), "a".into(), "-30%".into()));

    // In place, where plan knows the new value and where it does not.
    for (tag, price) in [("b", "-20%"), ("c", "+0.25")] {
        let config = objects(&name, tag, price);
        let known = tag == "c";
        let literal = |text: String| {
            text.replace("terraform_data.tag.output", "\"c\"").replace("terraform_data.price.output", "\"+0.25\"")
        };
        stand.write(&if known { literal(config) } else { config });
        let all = [&OBJECTS[..], &["terraform_data.price", "terraform_data.tag"]].concat();
        step(&stand, "update", &all);
        assert_eq!(live(), (uids.clone(), tag.into(), price.into()));
    }
    stand.write(&objects(&other, "c", "+0.25"));
    step(&stand, "replace", &OBJECTS);
    assert_eq!(
        [cluster.get(&["ec2nodeclass", &name]), cluster.get(&["nodeoverlay", &name])],
        [Value::Null, Value::Null]
    );
    stand.destroy();
}

/// What the configuration sets is the whole map: keys of others show, and go as values of others do, by force.
#[test]
fn a_key_that_others_add_to_a_map_shows_and_goes() {
    let Some(cluster) = Cluster::find("a_key_that_others_add_to_a_map_shows_and_goes") else { return };
    let name = cluster.unique("key");
    let config = |more: &str| {
        let pool = pool(&name, r#"{ cpu = "100" }"#).replace("  wait_for_ready", &format!("{more}  wait_for_ready"));
        format!("{PROVIDER}{CRDS}{pool}")
    };
    let stand = cluster.stand(&config(""));
    stand.apply();
    let keys = json!({ "limits": { "memory": "10Gi" }, "template": { "metadata": { "labels": { "theirs": "b" } } } });
    let patch = json!({ "spec": keys }).to_string();
    cluster.kubectl(&["patch", "nodepool", &name, "--type=merge", "-p", &patch]);
    let plan = stand.plan();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_node_pool.it".to_owned())], "{}", plan.text);
    let refused = stand.apply_failing().one_error();
    for owned in ["spec.limits.memory (kubectl-patch)", "spec.template.metadata.labels.theirs (kubectl-patch)"] {
        assert!(refused.contains(owned), "{refused}");
    }
    stand.write(&config("  force_conflicts = true\n"));
    step(&stand, "update", &["karp_node_pool.it"]);
    let spec = cluster.get(&["nodepool", &name])["spec"].clone();
    assert_eq!(spec["limits"], json!({ "cpu": "100" }));
    assert_eq!(spec["template"]["metadata"]["labels"], json!({ "team": "a" }));
    stand.destroy();
}

/// A role that is made in the same apply is not known at plan; nor is what a pool's labels are taken from.
#[test]
fn a_pool_is_planned_before_all_of_it_is_known() {
    let Some(cluster) = Cluster::find("a_pool_is_planned_before_all_of_it_is_known") else { return };
    let name = cluster.unique("later");
    let later = |text: &str| {
        let pool = pool(&name, "{ cpu = terraform_data.later.output }")
            .replace("\"480h\"", "\"${terraform_data.later.output}h\"");
        format!("{PROVIDER}{CRDS}resource \"terraform_data\" \"later\" {{\n  input = {text:?}\n}}\n{pool}")
    };
    let stand = cluster.stand(&later("100"));
    stand.apply();
    stand.assert_empty_plan();
    stand.write(&later("200"));
    step(&stand, "update", &["karp_node_pool.it", "terraform_data.later"]);
    let spec = cluster.get(&["nodepool", &name])["spec"].clone();
    assert_eq!((&spec["limits"]["cpu"], &spec["template"]["spec"]["expireAfter"]), (&json!("200"), &json!("200h")));
    stand.destroy();
}

#[test]
fn a_controller_moves_to_another_namespace_whichever_goes_first() {
    let Some(cluster) = Cluster::find("a_controller_moves_to_another_namespace") else { return };
    let _turn = controllers();
    let config = |namespace: &str, more: &str| {
        format!(
            "{PROVIDER_OF_DEMO}resource \"karp_controller\" \"it\" {{\n  namespace = {namespace:?}\n  image = \"karp:edge\"\n  replicas = 0\n{more}}}\n"
        )
    };
    let names = ["one", "two", "three"].map(|name| cluster.unique(&format!("moves-{name}")));
    let stand = cluster.stand(&config(&names[0], ""));
    stand.apply();
    let first = "  lifecycle {\n    create_before_destroy = true\n  }\n";
    for (at, more) in [(1, ""), (2, first)] {
        stand.write(&config(&names[at], more));
        step(&stand, "replace", &["karp_controller.it"]);
        assert_eq!(cluster.get(&["namespace", &names[at - 1]]), Value::Null);
        assert!(cluster.get(&["-n", &names[at], "deployment", "karpenter"]).is_object());
        let binding = cluster.get(&["clusterrolebinding", "karpenter"]);
        assert_eq!(binding["subjects"][0]["namespace"], names[at].as_str(), "{binding}");
    }
    // A binding that somebody emptied is seen and healed, and is no other controller's: it goes with this one.
    let empty = || {
        let taken = r#"[{"op":"remove","path":"/subjects"}]"#;
        for binding in [&["clusterrolebinding"][..], &["-n", &names[2], "rolebinding"]] {
            cluster.kubectl(&[&["patch"], binding, &["karpenter", "--type=json", "-p", taken]].concat());
        }
    };
    empty();
    step(&stand, "update", &["karp_controller.it"]);
    let binding = cluster.get(&["clusterrolebinding", "karpenter"]);
    assert_eq!(binding["subjects"][0]["namespace"], names[2].as_str(), "{binding}");
    empty();
    stand.destroy();
    for kind in ["clusterrole", "clusterrolebinding"] {
        assert_eq!(cluster.get(&[kind, "karpenter"]), Value::Null);
    }
}
