//! What somebody deleted behind OpenTofu's back is made again, and definitions are imported.

use crate::stand::{AwsAuth, Cluster};
use crate::{CRDS, PROVIDER, PROVIDER_OF_DEMO, class, controllers, pool};

/// All that a controller consists of, beside its namespace.
const OF_CONTROLLER: [&str; 9] = [
    "deployment/karpenter",
    "serviceaccount/karpenter",
    "role/karpenter",
    "rolebinding/karpenter",
    "clusterrole/karpenter",
    "clusterrole/karpenter-admin",
    "clusterrolebinding/karpenter",
    "service/karpenter",
    "poddisruptionbudget/karpenter",
];

#[test]
fn what_was_deleted_is_made_again() {
    let Some(cluster) = Cluster::find("what_was_deleted_is_made_again") else { return };
    let _turn = controllers();
    let name = cluster.unique("vanished");
    let _namespace = cluster.namespace(&name);
    let stand = cluster.stand(&format!(
        r#"
{PROVIDER_OF_DEMO}
{CRDS}
resource "karp_controller" "it" {{
  namespace  = "{name}"
  image      = "karp:edge"
  replicas   = 0
  depends_on = [karp_crds.this]
}}
{}
{}"#,
        class(&name, "  wait_for_ready = false"),
        pool(&name, r#"{ cpu = "100" }"#)
    ));
    stand.apply();
    stand.assert_empty_plan();
    cluster.kubectl(&["delete", "nodepool", &name]);
    cluster.kubectl(&["delete", "ec2nodeclass", &name]);
    let delete = |objects: &[&str]| cluster.kubectl(&[&["-n", name.as_str(), "delete"][..], objects].concat());
    let missing = || {
        let mut missing = OF_CONTROLLER.to_vec();
        missing.retain(|object| cluster.get(&["-n", name.as_str(), *object]).is_null());
        missing
    };
    assert_eq!(missing(), Vec::<&str>::new());
    delete(&OF_CONTROLLER[..7]);
    let mut changes = stand.apply().changes();
    changes.sort();
    // The rest of the controller is still there, so that it is put right.
    let expected =
        [("create", "karp_node_class.it"), ("create", "karp_node_pool.it"), ("update", "karp_controller.it")];
    assert_eq!(changes, expected.map(|(action, address)| (action.to_owned(), address.to_owned())));
    stand.assert_empty_plan();
    assert_eq!(missing(), Vec::<&str>::new());

    // Where nothing of it is left, it is made anew.
    delete(&OF_CONTROLLER);
    let run = stand.apply();
    assert_eq!(run.changes(), [("create".to_owned(), "karp_controller.it".to_owned())], "{}", run.text);
    stand.assert_empty_plan();
    assert_eq!(missing(), Vec::<&str>::new());

    // Another name is another object: the old one goes.
    let other = cluster.unique("replaced");
    stand.write(&format!("{PROVIDER_OF_DEMO}{CRDS}{}", pool(&other, r#"{ cpu = "100" }"#)));
    let mut changes = stand.apply().changes();
    changes.sort();
    let expected =
        [("delete", "karp_controller.it"), ("delete", "karp_node_class.it"), ("replace", "karp_node_pool.it")];
    assert_eq!(changes, expected.map(|(action, address)| (action.to_owned(), address.to_owned())));
    stand.assert_empty_plan();
    assert!(cluster.get(&["nodepool", &name]).is_null() && cluster.get(&["nodepool", &other]).is_object());
    stand.destroy();
}

#[test]
fn definitions_that_somebody_deleted_come_back_and_are_imported() {
    let Some(cluster) = Cluster::find_alone("definitions_that_somebody_deleted_come_back") else { return };
    let adopting = format!("{PROVIDER_OF_DEMO}resource \"karp_crds\" \"this\" {{\n  adopt = true\n}}\n");
    let stand = cluster.stand(&adopting);
    stand.apply();
    cluster.kubectl(&["delete", "crd", "nodeoverlays.karpenter.sh"]);
    let plan = stand.apply();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_crds.this".to_owned())], "{}", plan.text);
    stand.assert_empty_plan();
    assert!(cluster.get(&["crd", "nodeoverlays.karpenter.sh"]).is_object());

    let plain = format!("{PROVIDER_OF_DEMO}{CRDS}");
    let importer = cluster.stand(&plain);
    let imported = importer.tofu(&["import", "-no-color", "karp_crds.this", "crds"]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    importer.assert_empty_plan();
    importer.destroy();
    assert!(cluster.get(&["crd", "nodeoverlays.karpenter.sh"]).is_object(), "definitions stay");
}

/// All that `karp_crds` makes.
const DEFINITIONS: [&str; 5] = [
    "capacitybuffers.autoscaling.x-k8s.io",
    "ec2nodeclasses.karpenter.k8s.aws",
    "nodeclaims.karpenter.sh",
    "nodeoverlays.karpenter.sh",
    "nodepools.karpenter.sh",
];

/// Nothing here says that objects come after their definitions: they wait for those of the same apply, and say so where none come.
#[test]
fn objects_come_with_their_definitions_in_one_apply_that_knows_no_order() {
    let Some(cluster) = Cluster::find_alone("objects_come_with_their_definitions_in_one_apply") else { return };
    let name = cluster.unique("unordered");
    let unordered = |config: String| {
        config.replace("  depends_on     = [karp_crds.this]\n", "").replace("  depends_on = [karp_crds.this]\n", "")
    };
    let class = |more: &str| class(&name, &format!("  wait_for_ready = false{more}"));
    // Two of a kind are looked for by a list.
    let second = pool(&format!("{name}-2"), "null").replace("\"it\"", "\"second\"");
    let stand = cluster.stand(&unordered(format!("{PROVIDER}{CRDS}{}{}{second}", class(""), pool(&name, "null"))));
    stand.apply();
    // The objects go with their definitions.
    cluster.kubectl(&[&["delete", "crd", "--timeout=60s"][..], &DEFINITIONS].concat());

    let missing = class("\n  timeouts = { create = \"3s\" }");
    let told = cluster.stand(&unordered(format!("{PROVIDER}{missing}"))).apply_failing().one_error();
    for words in ["CRD ec2nodeclasses.karpenter.k8s.aws is not there yet", "must be installed first", "karp_crds"] {
        assert!(told.contains(words), "{words}: {told}");
    }

    let run = stand.apply();
    let mut changes = run.changes();
    changes.sort();
    let made = ["karp_crds.this", "karp_node_class.it", "karp_node_pool.it", "karp_node_pool.second"];
    assert_eq!(changes, made.map(|address| ("create".to_owned(), address.to_owned())), "{}", run.text);
    stand.assert_empty_plan();
    assert!(cluster.get(&["ec2nodeclass", &name]).is_object() && cluster.get(&["nodepool", &name]).is_object());
    stand.destroy();
}

#[test]
fn an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back() {
    let Some(cluster) = Cluster::find("an_entry_of_aws_auth_that_somebody_took_out") else { return };
    let aws_auth = AwsAuth::with(&cluster, "[]\n");
    let entry = |role: &str| {
        format!(
            "{PROVIDER_OF_DEMO}resource \"karp_aws_auth_entry\" \"it\" {{\n  role_arn = \"arn:aws:iam::111122223333:role/{role}\"\n}}\n"
        )
    };
    let stand = cluster.stand(&entry("one"));
    stand.apply();
    let written = aws_auth.roles();
    // Edited rather than taken out: it is put right.
    for (entries, action) in [("[]\n".to_owned(), "create"), (written.replace("system:nodes", "theirs"), "update")] {
        assert_ne!(entries, written);
        aws_auth.edit(&entries);
        assert_eq!(stand.apply().changes(), [(action.to_owned(), "karp_aws_auth_entry.it".to_owned())]);
        stand.assert_empty_plan();
        assert_eq!(aws_auth.roles(), written);
    }

    stand.write(&entry("two"));
    assert_eq!(stand.apply().changes(), [("replace".to_owned(), "karp_aws_auth_entry.it".to_owned())]);
    stand.assert_empty_plan();
    let left = aws_auth.roles();
    assert!(left.contains("role/two") && !left.contains("role/one"), "{left}");

    let importer = cluster.stand(&entry("two"));
    let id = "arn:aws:iam::111122223333:role/two";
    let imported = importer.tofu(&["import", "-no-color", "karp_aws_auth_entry.it", id]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    importer.assert_empty_plan();
    stand.destroy();
}
