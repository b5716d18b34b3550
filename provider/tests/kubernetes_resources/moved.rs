//! Manifests that other providers and kubectl kept move in, are imported or adopted. Each test ends on an empty plan.

use serde_json::{Value, json};

use crate::others::Left;
use crate::stand::Cluster;
use crate::{CRDS, PROVIDER, class, pool};

/// What is kept, by the names that manifests have in a state.
const KEPT: [&str; 3] = ["nodepool", "ec2nodeclass", "nodeoverlay"];
const KEPT_BY_KUBECTL: [&str; 3] =
    ["kubectl_manifest.nodepool", "kubectl_manifest.ec2nodeclass", "kubectl_manifest.nodeoverlay"];
const KEPT_BY_KUBERNETES: [&str; 3] =
    ["kubernetes_manifest.nodepool", "kubernetes_manifest.ec2nodeclass", "kubernetes_manifest.nodeoverlay"];

fn manifests(name: &str) -> [Value; 3] {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
        "spec": {
            "disruption": { "consolidateAfter": "5s", "budgets": [{ "nodes": "100%" }] },
            "limits": { "cpu": "100" },
            "template": {
                "metadata": { "labels": { "team": "a" } },
                "spec": {
                    "expireAfter": "480h",
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name },
                    "requirements": [
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
                        { "key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"] },
                    ],
                },
            },
        },
    });
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": name },
        "spec": {
            "instanceProfile": "p",
            "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": [{ "id": "subnet-1" }],
            "securityGroupSelectorTerms": [{ "id": "sg-1" }],
        },
    });
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name },
        "spec": {
            "priceAdjustment": "-30%",
            "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"] }],
        },
    });
    [pool, class, overlay]
}

fn config(name: &str, manifest: &str) -> String {
    let overlay = format!(
        "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  depends_on = [karp_crds.this]\n}}\n"
    );
    let pool = pool(name, r#"{ cpu = "100" }"#).replace("  wait_for_ready = false\n", "");
    let moved =
        [("nodepool", "karp_node_pool"), ("ec2nodeclass", "karp_node_class"), ("nodeoverlay", "karp_node_overlay")]
            .map(|(kept, kind)| format!("moved {{\n  from = {manifest}.{kept}\n  to = {kind}.it\n}}\n"));
    format!("{PROVIDER}{CRDS}{pool}{}{overlay}{}", class(name, ""), moved.concat())
}

#[test]
fn objects_that_other_providers_kept_move_in_without_a_difference() {
    let Some(cluster) = Cluster::find("objects_that_other_providers_kept_move_in_without_a_difference") else { return };
    let crds = cluster.stand(&format!("{PROVIDER}{CRDS}"));
    crds.apply();
    // The registry that kept them does not matter.
    for (provider, addresses) in
        [("gavinbunney/kubectl", KEPT_BY_KUBECTL), ("registry.terraform.io/hashicorp/kubernetes", KEPT_BY_KUBERNETES)]
    {
        let name = cluster.unique(&provider.replace(['/', '.'], "-"));
        let is_kubectl = addresses == KEPT_BY_KUBECTL;
        let mut left = Vec::new();
        for (object, address) in manifests(&name).into_iter().zip(addresses) {
            cluster.create(&object);
            let (version, kind) = (&object["apiVersion"], &object["kind"]);
            let attributes = if is_kubectl {
                json!({ "api_version": version, "kind": kind, "name": name, "yaml_body": object.to_string() })
            } else {
                json!({ "object": { "value": object, "type": "dynamic" }, "manifest": null })
            };
            let identity = json!({ "api_version": version, "kind": kind, "name": name, "namespace": null });
            let identity = (!is_kubectl).then_some((1, identity));
            left.push(Left { provider, address, version: 1, attributes, identity });
        }
        let uids = || KEPT.map(|kind| cluster.get(&[kind, &name])["metadata"]["uid"].clone());
        let before = uids();
        let manifest = addresses[0].split('.').next().unwrap();
        let stand = cluster.stand(&config(&name, manifest));
        stand.hand_over(&left);
        let plan = stand.apply();
        let mut changes = plan.changes();
        changes.retain(|(_, address)| address != "karp_crds.this");
        assert!(changes.iter().all(|(action, _)| action == "move" || action == "noop"), "{}", plan.text);
        assert_eq!(changes.len(), 3, "{}", plan.text);
        stand.assert_empty_plan();
        assert_eq!(uids(), before, "they are the same objects");
        stand.destroy();
    }
}

/// A pool with more than the others have, and an overlay, on CRDs that are there.
struct Shed<'a> {
    name: &'a str,
    /// Whether the pool has limits, a weight and a taint, and the overlay a weight and an adjustment in place of a price.
    all: bool,
    force: bool,
    expire_after: &'a str,
}

impl Shed<'_> {
    fn config(&self) -> String {
        let Self { name, all, force, expire_after } = self;
        let force = if *force { "  force_conflicts = true\n" } else { "" };
        let (taints, weight, price) = if *all {
            (
                "    taints = [{ key = \"own\", effect = \"NoSchedule\" }]\n",
                "  weight = 7\n",
                "price_adjustment = \"-30%\"",
            )
        } else {
            ("", "", "price = \"0.42\"")
        };
        let pool = pool(name, if *all { r#"{ cpu = "100" }"# } else { "null" })
            .replace("    expire_after", &format!("{taints}    expire_after"))
            .replace("480h", expire_after)
            .replace("  wait_for_ready", &format!("{weight}{force}  wait_for_ready"));
        let overlay = format!(
            "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  {price}\n{weight}{force}  requirements = [{{ key = \
             \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n}}\n"
        );
        format!("{PROVIDER}{pool}{overlay}").replace("  depends_on     = [karp_crds.this]\n", "")
    }

    /// Makes the objects with all of it by kubectl.
    fn create(cluster: &Cluster, name: &str) {
        let [mut pool, _, mut overlay] = manifests(name);
        pool["spec"]["weight"] = json!(7);
        pool["spec"]["template"]["spec"]["taints"] = json!([{ "key": "own", "effect": "NoSchedule" }]);
        overlay["spec"]["weight"] = json!(7);
        cluster.create(&pool);
        cluster.create(&overlay);
    }
}

#[test]
fn what_was_imported_and_is_configured_no_more_goes() {
    let Some(cluster) = Cluster::find("what_was_imported_and_is_configured_no_more_goes") else { return };
    cluster.stand(&format!("{PROVIDER}{CRDS}")).apply();
    let name = cluster.unique("shed");
    Shed::create(&cluster, &name);
    let whole = Shed { name: &name, all: true, force: false, expire_after: "480h" };
    let stand = cluster.stand(&whole.config());
    for address in ["karp_node_pool.it", "karp_node_overlay.it"] {
        let imported = stand.tofu(&["import", "-no-color", address, &name]);
        assert_eq!(imported.code, 0, "{}", imported.text);
    }
    // It does not wait, which the import could not know.
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), "karp_node_pool.it".to_owned())], "{}", run.text);
    stand.assert_empty_plan();

    // kubectl owns it all, too: nothing is taken away in silence, and nothing stays in silence.
    let live = || ["nodepool", "nodeoverlay"].map(|kind| cluster.get(&[kind, &name])["spec"].clone());
    let before = live();
    stand.write(&Shed { all: false, ..whole }.config());
    let refused = stand.apply_failing();
    let told: Vec<_> = refused.errors().iter().map(|error| error["detail"].to_string()).collect();
    for owned in ["limits.cpu", "weight", "template.spec.taints", "priceAdjustment"] {
        let owned = format!("spec.{owned} (kubectl-create)");
        assert!(told.iter().any(|told| told.contains(&owned)), "{owned}: {told:?}");
    }
    assert_eq!(live(), before);

    // The overlay's price and its adjustment exclude each other: one goes and the other comes in one write.
    stand.write(&Shed { all: false, force: true, ..whole }.config());
    assert_eq!(stand.apply().changes().len(), 2);
    stand.assert_empty_plan();
    let [pool, overlay] = live();
    assert_eq!([&pool["limits"], &pool["weight"], &pool["template"]["spec"]["taints"]], [&Value::Null; 3], "{pool}");
    assert_eq!([&overlay["priceAdjustment"], &overlay["weight"]], [&Value::Null; 2], "{overlay}");
    assert_eq!(overlay["price"], "0.42");

    // From then on nobody else owns what is set.
    stand.write(&Shed { all: false, expire_after: "240h", ..whole }.config());
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(live()[0]["template"]["spec"]["expireAfter"], "240h");
    stand.destroy();
}

/// The pool is taken over by its own word, the class and the overlay by that of the provider block that they name.
#[test]
fn adopted_objects_are_what_the_configuration_sets_and_the_rest_is_told() {
    let Some(cluster) = Cluster::find("adopted_objects_are_what_the_configuration_sets") else { return };
    cluster.stand(&format!("{PROVIDER}{CRDS}")).apply();
    let name = cluster.unique("adopted");
    let [mut theirs, mut class_of_theirs, mut overlay_of_theirs] = manifests(&name);
    theirs["spec"]["weight"] = json!(7);
    theirs["spec"]["limits"]["memory"] = json!("10Gi");
    class_of_theirs["spec"]["detailedMonitoring"] = json!(true);
    overlay_of_theirs["spec"]["weight"] = json!(7);
    for object in [&theirs, &class_of_theirs, &overlay_of_theirs] {
        cluster.create(object);
    }
    let uids = || KEPT.map(|kind| cluster.get(&[kind, &name])["metadata"]["uid"].clone());
    let before = uids();

    let adopts = PROVIDER.replacen("{\n", "{\n  alias          = \"adopts\"\n  adopt_existing = true\n", 1);
    let pool = pool(&name, r#"{ cpu = "100" }"#)
        .replace("  depends_on     = [karp_crds.this]\n", "  adopt = true\n  force_conflicts = true\n");
    let class = class(&name, "  wait_for_ready = false")
        .replace("  depends_on = [karp_crds.this]\n", "  provider = karp.adopts\n");
    let overlay = format!(
        "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  provider = karp.adopts\n}}\n"
    );
    let stand = cluster.stand(&format!("{PROVIDER}{adopts}{pool}{class}{overlay}"));
    let run = stand.apply();
    let beyond = |warning: &Value| {
        let (object, _) = warning["summary"].as_str()?.split_once(" has more than")?;
        let (others, _) = warning["detail"].as_str()?.split_once(". ")?;
        Some(format!("{object}: {others}"))
    };
    let mut told: Vec<String> = run.warnings().into_iter().filter_map(beyond).collect();
    told.sort();
    let expected = [
        format!("EC2NodeClass {name:?}: Others set detailed_monitoring"),
        format!("NodeOverlay {name:?}: Others set weight"),
        format!("NodePool {name:?}: Others set weight"),
    ];
    assert_eq!(told, expected, "{}", run.text);
    stand.assert_empty_plan();
    assert_eq!(uids(), before, "they are the same objects");
    let spec = cluster.get(&["nodepool", &name])["spec"].clone();
    assert_eq!((&spec["limits"], &spec["weight"]), (&json!({ "cpu": "100" }), &json!(7)));
    stand.destroy();
    assert_eq!(uids(), [(); 3].map(|()| Value::Null));
}
