//! What somebody deleted behind OpenTofu's back is made again, and definitions are imported.

use crate::stand::{AwsAuth, Cluster};
use crate::{CRDS, PROVIDER_OF_DEMO, class, controllers, pool};

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
    cluster.kubectl(&["-n", &name, "delete", "deployment", "karpenter"]);
    let mut changes = stand.apply().changes();
    changes.sort();
    // The rest of the controller is still there, so that it is put right.
    let expected =
        [("create", "karp_node_class.it"), ("create", "karp_node_pool.it"), ("update", "karp_controller.it")];
    assert_eq!(changes, expected.map(|(action, address)| (action.to_owned(), address.to_owned())));
    stand.assert_empty_plan();
    assert!(cluster.get(&["-n", &name, "deployment", "karpenter"]).is_object());

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
