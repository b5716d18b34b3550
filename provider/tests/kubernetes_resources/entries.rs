//! Node overlays, the kubelet's open settings, and entries of `aws-auth`.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::stand::{AwsAuth, Cluster};
use crate::{CRDS, PROVIDER, class};

/// Leaves the CRDs out, for a stand that imports.
fn alone(config: &str) -> String {
    config.replace(CRDS, "").replace("  depends_on = [karp_crds.this]\n", "")
}

fn overlay(name: &str, price: &str) -> String {
    format!(
        "{PROVIDER}{CRDS}resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  price_adjustment = {price:?}\n  \
         capacity = {{ \"example.com/device\" = \"2\" }}\n  weight = 10\n  depends_on = [karp_crds.this]\n}}\n"
    )
}

#[test]
fn an_overlay_comes_changes_returns_and_is_imported() {
    let Some(cluster) = Cluster::find("an_overlay_comes_changes_returns_and_is_imported") else { return };
    let name = cluster.unique("overlay");
    let stand = cluster.stand(&overlay(&name, "-30%"));
    stand.apply();
    stand.assert_empty_plan();
    stand.write(&overlay(&name, "+0.25"));
    let plan = stand.apply();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_node_overlay.it".to_owned())], "{}", plan.text);
    stand.assert_empty_plan();
    assert_eq!(cluster.get(&["nodeoverlay", &name])["spec"]["priceAdjustment"], "+0.25");

    cluster.kubectl(&["delete", "nodeoverlay", &name]);
    assert_eq!(stand.apply().changes(), [("create".to_owned(), "karp_node_overlay.it".to_owned())]);
    let importer = cluster.stand(&alone(&overlay(&name, "+0.25")));
    let imported = importer.tofu(&["import", "-no-color", "karp_node_overlay.it", &name]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    importer.assert_empty_plan();
    stand.destroy();
    assert_eq!(cluster.get(&["nodeoverlay", &name]), Value::Null);
}

#[test]
fn settings_of_the_kubelet_that_have_no_attribute_are_kept_and_imported() {
    let Some(cluster) = Cluster::find("settings_of_the_kubelet_that_have_no_attribute") else { return };
    let name = cluster.unique("kubelet");
    let config = |more: &str| {
        let settings = format!(
            "  enclave_options = {{ enabled = false }}\n  kubelet = {{ pods_per_core = 4, more_json = jsonencode({more}) }}"
        );
        format!("{PROVIDER}{CRDS}{}", class(&name, &settings))
    };
    let settings = "{ maxPods = \"self.enis * 10\", topologyManagerPolicy = \"restricted\", registryBurst = 20 }";
    let waiting = config(settings).replace("  depends_on", "  wait_for_ready = false\n  depends_on");
    let stand = cluster.stand(&waiting);
    stand.apply();
    stand.assert_empty_plan();
    let live = cluster.get(&["ec2nodeclass", &name]);
    assert_eq!(live["spec"]["kubelet"]["registryBurst"], 20, "{live}");
    // What others add is theirs; what they change shows.
    let patch = |kubelet: Value| {
        let patch = json!({ "spec": { "kubelet": kubelet } }).to_string();
        cluster.kubectl(&["patch", "ec2nodeclass", &name, "--type=merge", "-p", &patch]);
    };
    patch(json!({ "seccompDefault": true }));
    stand.assert_empty_plan();
    patch(json!({ "registryBurst": 30 }));
    assert_eq!(stand.plan().changes(), [("update".to_owned(), "karp_node_class.it".to_owned())]);
    patch(json!({ "registryBurst": 20, "seccompDefault": null }));
    let importer = cluster.stand(&alone(&config(settings)));
    let imported = importer.tofu(&["import", "-no-color", "karp_node_class.it", &name]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    importer.assert_empty_plan();
    stand.destroy();
}

#[test]
fn an_entry_of_aws_auth_leaves_those_of_others() {
    let Some(cluster) = Cluster::find("an_entry_of_aws_auth_leaves_those_of_others") else { return };
    let theirs = "- rolearn: arn:aws:iam::111122223333:role/workers\n  username: system:node:{{EC2PrivateDNSName}}\n  groups:\n  - \
                  system:bootstrappers\n  - system:nodes\n";
    let aws_auth = AwsAuth::with(&cluster, theirs);
    let config = |more: &str| {
        format!(
            "{PROVIDER}resource \"karp_aws_auth_entry\" \"nodes\" {{\n  count = 5\n  role_arn = \
             \"arn:aws:iam::111122223333:role/path/nodes-${{count.index}}\"\n{more}\n}}\n"
        )
    };
    let stand = cluster.stand(&config(""));
    // Five at the same time: none is lost.
    stand.apply();
    stand.assert_empty_plan();
    let text = aws_auth.roles();
    assert!((0..5).all(|at| text.contains(&format!("role/nodes-{at}"))) && text.contains("role/workers"), "{text}");

    stand.write(&config("  username = \"system:node:{{SessionName}}\""));
    assert_eq!(stand.apply().changes().len(), 5);
    stand.assert_empty_plan();
    let other = cluster.stand(&config("").replace("count = 5", "count = 1"));
    let refused = other.apply_failing().one_error();
    assert!(refused.contains("adopt = true") && refused.contains("SessionName"), "{refused}");
    let imported = other.tofu(&[
        "import",
        "-no-color",
        "karp_aws_auth_entry.nodes[0]",
        "arn:aws:iam::111122223333:role/path/nodes-0",
    ]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    assert_eq!(other.plan().changes().len(), 1, "the other name shows");

    // Broken by hand: told, and left as it is.
    let good = aws_auth.roles();
    aws_auth.edit("nonsense: [");
    let told = stand.plan();
    assert!(told.code == 1 && told.text.contains("mapRoles"), "{}", told.text);
    aws_auth.edit(&good);
    stand.destroy();
    let left = aws_auth.roles();
    assert!(left.contains("role/workers") && !left.contains("role/nodes"), "{left}");
}

/// A cluster may have no `aws-auth`: the first entry makes it, and makes it again when somebody deleted it.
#[test]
fn an_entry_makes_the_config_map_where_there_is_none() {
    let Some(cluster) = Cluster::find("an_entry_makes_the_config_map_where_there_is_none") else { return };
    let aws_auth = AwsAuth::absent(&cluster);
    let live = || cluster.get(&["-n", "kube-system", "configmap", "aws-auth"]);
    assert_eq!(live(), Value::Null);
    let role = "arn:aws:iam::111122223333:role/first";
    let stand =
        cluster.stand(&format!("{PROVIDER}resource \"karp_aws_auth_entry\" \"it\" {{\n  role_arn = {role:?}\n}}\n"));
    stand.apply();
    stand.assert_empty_plan();
    let made = aws_auth.roles();
    assert!(made.contains(role) && made.contains("system:nodes"), "{made}");

    aws_auth.delete();
    assert_eq!(stand.apply().changes(), [("create".to_owned(), "karp_aws_auth_entry.it".to_owned())]);
    stand.assert_empty_plan();
    assert_eq!(aws_auth.roles(), made);
    stand.destroy();
    assert!(!aws_auth.roles().contains(role), "{}", aws_auth.roles());
}

/// The environment's address and context count where the block leaves them out, in each of the forms of hashicorp/kubernetes.
#[test]
fn the_environment_tells_where_the_cluster_is() {
    let Some(cluster) = Cluster::find("the_environment_tells_where_the_cluster_is") else { return };
    let name = cluster.unique("env");
    let stand = cluster.stand(&overlay(&name, "-30%"));
    stand.apply();
    let real: Value = serde_json::from_str(&std::fs::read_to_string(&cluster.kubeconfig).unwrap()).unwrap();
    let mut contexts = real.clone();
    contexts["clusters"] = json!([{ "name": "sandbox", "cluster": { "server": "https://127.0.0.1:9" } }]);
    contexts["current-context"] = json!("nowhere");
    contexts["contexts"] = json!([{ "name": "nowhere", "context": { "cluster": "nowhere", "user": "nobody" } }]);
    stand.put("contexts.json", &contexts);
    let mut good = real.clone();
    good["clusters"][0]["name"] = json!("it");
    stand.put("good.json", &good);
    let of = |name: &str| stand.folder().join(name).to_str().unwrap().to_owned();
    let (contexts, good) = (of("contexts.json"), of("good.json"));
    let both = format!("{contexts}:{good}");
    let bare = |block: &str| overlay(&name, "-30%").replace(PROVIDER, &format!("provider \"karp\" {{\n{block}\n}}\n"));
    let empty = |block: &str, environment: &[(&str, &str)]| {
        stand.write(&bare(block));
        let run = stand.plan_with(environment);
        assert_eq!((run.code, run.changes()), (0, vec![]), "{block} {environment:?}: {}", run.text);
    };
    empty("", &[("KUBE_CONFIG_PATH", cluster.kubeconfig.as_str())]);
    empty("  kubernetes = {}", &[("KUBE_CONFIG_PATH", cluster.kubeconfig.as_str())]);
    // The first file names a context that leads nowhere, the second one the cluster by another name.
    let chosen = [("KUBE_CTX", "sandbox"), ("KUBE_CTX_CLUSTER", "it"), ("KUBE_CTX_AUTH_INFO", "sandbox")];
    empty("", &[&[("KUBE_CONFIG_PATHS", both.as_str())], &chosen[..]].concat());
    empty(
        &format!(
            "  kubernetes = {{\n    config_paths = [{contexts:?}, {good:?}]\n    config_context = \"sandbox\"\n    config_context_cluster =              \"it\"\n    config_context_auth_info = \"sandbox\"\n  }}"
        ),
        &[("KUBE_HOST", "https://127.0.0.1:9")],
    );
    let pem = |value: &Value| {
        let data = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
        String::from_utf8(data).unwrap()
    };
    let (server, user) = (&real["clusters"][0]["cluster"], &real["users"][0]["user"]);
    let (ca, certificate, key) = (
        pem(&server["certificate-authority-data"]),
        pem(&user["client-certificate-data"]),
        pem(&user["client-key-data"]),
    );
    let address = [
        ("KUBE_HOST", server["server"].as_str().unwrap()),
        ("KUBE_CLUSTER_CA_CERT_DATA", &ca),
        ("KUBE_CLIENT_CERT_DATA", &certificate),
        ("KUBE_CLIENT_KEY_DATA", &key),
    ];
    empty("", &address);

    stand.write(&bare(""));
    let run = stand.plan_with(&[("KUBECONFIG", cluster.kubeconfig.as_str())]);
    assert!(run.one_error().contains("neither `cluster_name` nor `kubernetes`"), "{}", run.text);
    stand.write(&overlay(&name, "-30%"));
    stand.destroy();
}
