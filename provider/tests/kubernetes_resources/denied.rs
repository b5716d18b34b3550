//! A caller that may look at single objects and list none: a refresh goes on one object after the other, and sees the same.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::{CRDS, PROVIDER, class, pool};

/// More than one of a kind: a list is what a refresh of them begins with.
const POOLS: usize = 3;

/// A ClusterRole of these verbs for objects of karp; definitions may be looked at.
fn role(name: &str, verbs: &[&str]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": [
            { "apiGroups": ["karpenter.sh", "karpenter.k8s.aws"], "resources": ["nodepools", "ec2nodeclasses"], "verbs": verbs },
            { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"] },
        ],
    })
}

/// The provider block of a service account, at the address of the kubeconfig.
fn as_account(cluster: &Cluster, namespace: &str, account: &str) -> String {
    let kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(&cluster.kubeconfig).unwrap()).unwrap();
    let server = &kubeconfig["clusters"][0]["cluster"];
    let authority = STANDARD.decode(server["certificate-authority-data"].as_str().unwrap()).unwrap();
    format!(
        "provider \"karp\" {{\n  kubernetes = {{\n    host = {}\n    cluster_ca_certificate = {:?}\n    token = {:?}\n  }}\n}}\n",
        server["server"],
        String::from_utf8(authority).unwrap(),
        cluster.token(namespace, account)
    )
}

#[test]
fn who_may_list_nothing_reads_one_after_the_other() {
    let Some(cluster) = Cluster::find("who_may_list_nothing_reads_one_after_the_other") else { return };
    let name = cluster.unique("denied");
    let named = json!({ "name": name });
    for object in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": named }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "reader", "namespace": name } }),
        role(&name, &["get", "create", "patch"]),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": named,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": name }] }),
    ] {
        cluster.create(&object);
    }
    let pools = pool(&name, r#"{ cpu = "100" }"#)
        .replace("  name = ", &format!("  count = {POOLS}\n  name = "))
        .replacen(&format!("\"{name}\""), &format!("\"{name}-${{count.index}}\""), 1);
    let objects = format!("{CRDS}{}{pools}", class(&name, "  wait_for_ready = false"));
    let stand = cluster.stand(&format!("{PROVIDER}{objects}"));
    stand.apply();
    stand.assert_empty_plan();

    let reader = as_account(&cluster, &name, "reader");
    stand.write(&format!("{reader}{objects}"));
    stand.assert_empty_plan();

    // What others change is seen all the same, and put right: what the preview may not look at is a line of its warning.
    let second = format!("{name}-1");
    cluster.kubectl(&["patch", "nodepool", &second, "--type=merge", "-p", r#"{"spec":{"limits":{"cpu":"50"}}}"#]);
    cluster.kubectl(&["delete", "nodepool", &format!("{name}-2")]);
    let planned = stand.plan();
    let mut changes = planned.changes();
    changes.sort();
    let expected = [("create", "karp_node_pool.it[2]"), ("update", "karp_node_pool.it[1]")];
    assert_eq!(changes, expected.map(|(action, address)| (action.to_owned(), address.to_owned())));
    let text = |told: &&Value| format!("{}\n{}", told["summary"].as_str().unwrap(), told["detail"].as_str().unwrap());
    let of_second = |text: &String| text.starts_with(&format!("NodePool {second:?}"));
    let told: Vec<String> = planned.warnings().iter().map(text).filter(of_second).collect();
    assert!(told.len() == 1 && told[0].contains("Its nodes could not be looked at:"), "{}", planned.text);
    stand.write(&format!(
        "{reader}{}",
        objects.replace("  wait_for_ready = false", "  wait_for_ready = false\n  force_conflicts = true")
    ));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(cluster.get(&["nodepool", &second])["spec"]["limits"]["cpu"], "100");

    // One after the other is forbidden, too: errors name what and whose.
    cluster.replace("test", &role(&name, &["create", "patch"]));
    let told = stand.plan();
    let errors = told.errors();
    assert!(told.code == 1 && !errors.is_empty(), "{}", told.text);
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("Not authorised") && text.contains(&name), "{text}");
    }
    stand.write(&format!("{PROVIDER}{objects}"));
    stand.destroy();
    for kind in ["clusterrolebinding", "clusterrole", "namespace"] {
        cluster.kubectl(&["delete", kind, &name, "--wait=false"]);
    }
}
