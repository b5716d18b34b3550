//! The CRDs where others had a hand in them: what is newer, stored or somebody else's stays until it is asked for.

use serde_json::{Value, json};

use crate::PROVIDER;
use crate::stand::{Cluster, Stand};

/// The one that these tests change: nothing else needs it.
const OVERLAYS: &str = "nodeoverlays.karpenter.sh";
const OURS: &str = "terraform-provider-karp";
/// The provider's annotation.
const MARK: &str = "karp.sh/definitions-version";

fn config(more: &str) -> String {
    format!("{PROVIDER}resource \"karp_crds\" \"this\" {{\n{more}}}\n")
}

/// A definition as it was, to which it returns however the test ends.
struct Changed<'a> {
    cluster: &'a Cluster,
    before: Value,
}

impl<'a> Changed<'a> {
    /// Brings the definitions to what the provider has, then changes one in the name of a field manager.
    fn by(cluster: &'a Cluster, manager: &str, change: impl FnOnce(&mut Value)) -> Self {
        let maker = cluster.stand(&config("  adopt = true\n  allow_downgrade = true\n"));
        maker.apply();
        maker.assert_empty_plan();
        let before = clean(cluster.get(&["crd", OVERLAYS]));
        let mut after = before.clone();
        // Something that the provider puts right.
        after["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        change(&mut after);
        cluster.replace(manager, &after);
        Self { cluster, before }
    }

    fn live(&self) -> Value {
        self.cluster.get(&["crd", OVERLAYS])
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.cluster.kubectl(&["patch", "crd", OVERLAYS, "--subresource=status", "--type=merge", "-p", STORED]);
        self.cluster.replace(OURS, &self.before);
    }
}

/// What the status says when all is well.
const STORED: &str = r#"{"status":{"storedVersions":["v1alpha1"]}}"#;

fn clean(mut live: Value) -> Value {
    live.as_object_mut().unwrap().remove("status");
    let metadata = live["metadata"].as_object_mut().unwrap();
    metadata.retain(|name, _| ["name", "annotations", "labels"].contains(&name.as_str()));
    live
}

/// Holds that an apply is refused with these words and changes nothing.
fn refused(stand: &Stand<'_>, changed: &Changed<'_>, words: &[&str]) {
    let before = changed.live();
    let told = stand.apply_failing().one_error();
    for word in [OVERLAYS].iter().chain(words) {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(changed.live(), before, "it was changed");
}

/// Applies with a permission, and holds that all is as the provider has it, and that nothing is left to do.
fn granted(stand: &Stand<'_>, changed: &Changed<'_>, more: &str) -> String {
    stand.write(&config(more));
    let run = stand.apply();
    stand.assert_empty_plan();
    let live = changed.live();
    assert_eq!(live["spec"], changed.before["spec"]);
    assert_eq!(live["metadata"]["annotations"][MARK], env!("CARGO_PKG_VERSION"));
    run.warnings().iter().map(ToString::to_string).collect()
}

#[test]
fn what_helm_keeps_is_taken_over_when_asked() {
    let Some(cluster) = Cluster::find_alone("what_helm_keeps_is_taken_over_when_asked") else { return };
    let changed = Changed::by(&cluster, "helm", |crd| {
        crd["metadata"]["annotations"]["meta.helm.sh/release-name"] = json!("karpenter-crd");
        crd["metadata"]["annotations"]["meta.helm.sh/release-namespace"] = json!("kube-system");
    });
    let stand = cluster.stand(&config(""));
    refused(&stand, &changed, &["Helm release kube-system/karpenter-crd", "adopt = true"]);
    let warned = granted(&stand, &changed, "  adopt = true\n");
    assert!(warned.contains("helm uninstall karpenter-crd"), "{warned}");
    // It is the provider's own by now, and no longer asked for.
    let warned = granted(&stand, &changed, "");
    assert!(!warned.contains("helm uninstall"), "{warned}");
    stand.destroy();
}

#[test]
fn an_edit_by_hand_shows_and_is_put_right_when_asked() {
    let Some(cluster) = Cluster::find_alone("an_edit_by_hand_shows_and_is_put_right_when_asked") else { return };
    let stand = cluster.stand(&config("  adopt = true\n"));
    stand.apply();
    stand.write(&config(""));
    stand.apply();
    let changed = Changed::by(&cluster, "kubectl-edit", |_| {});
    let plan = stand.plan();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_crds.this".to_owned())], "{}", plan.text);
    // The plan names the one that differs.
    let told = stand.tofu(&["plan", "-no-color"]).text;
    let differs = |name: &str| told.lines().any(|line| line.contains(&format!("~ \"{name}\"")));
    assert!(differs(OVERLAYS) && !differs("nodepools.karpenter.sh"), "{told}");
    refused(&stand, &changed, &["field manager kubectl-edit", "adopt = true"]);
    granted(&stand, &changed, "  adopt = true\n");
    stand.destroy();
}

#[test]
fn newer_ones_are_not_taken_back() {
    let Some(cluster) = Cluster::find_alone("newer_ones_are_not_taken_back") else { return };
    let known = cluster.stand(&config("  adopt = true\n"));
    known.apply();
    let changed = Changed::by(&cluster, OURS, |crd| {
        crd["metadata"]["annotations"][MARK] = json!("99.0.0");
        let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["mood"] = json!({ "type": "string" });
    });
    // A plan from state knows the version, a creation sees the schema, too.
    let planned = known.plan();
    assert!(planned.one_error().contains("karp 99.0.0"), "{}", planned.text);
    let ours = concat!("karp ", env!("CARGO_PKG_VERSION"));
    let stand = cluster.stand(&config("  adopt = true\n"));
    refused(&stand, &changed, &["karp 99.0.0", ours, "spec.mood", "allow_downgrade = true"]);
    granted(&stand, &changed, "  allow_downgrade = true\n");
    known.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_version_in_which_objects_are_stored_is_not_dropped() {
    let Some(cluster) = Cluster::find_alone("a_version_in_which_objects_are_stored_is_not_dropped") else { return };
    let changed = Changed::by(&cluster, "helm", |crd| {
        let mut old = crd["spec"]["versions"][0].clone();
        (old["name"], old["storage"]) = (json!("v1alpha0"), json!(false));
        crd["spec"]["versions"].as_array_mut().unwrap().push(old);
    });
    let stored = r#"{"status":{"storedVersions":["v1alpha0","v1alpha1"]}}"#;
    cluster.kubectl(&["patch", "crd", OVERLAYS, "--subresource=status", "--type=merge", "-p", stored]);
    let stand = cluster.stand(&config("  adopt = true\n"));
    refused(&stand, &changed, &["stored in v1alpha0", "--subresource=status"]);
    // As the error says, once every object was written anew.
    cluster.kubectl(&["patch", "crd", OVERLAYS, "--subresource=status", "--type=merge", "-p", STORED]);
    granted(&stand, &changed, "  adopt = true\n");
    stand.destroy();
}

#[test]
fn definitions_stay_while_objects_live() {
    let Some(cluster) = Cluster::find_alone("definitions_stay_while_objects_live") else { return };
    let name = cluster.unique("object");
    let stand = cluster.stand(&config("  adopt = true\n  keep_on_destroy = false\n  timeouts = { delete = \"2s\" }\n"));
    stand.apply();
    cluster
        .create(&json!({ "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name },
        "spec": { "requirements": [], "priceAdjustment": "+1%" } }));
    let run = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    let told = run.one_error();
    assert!(told.contains(&name) && told.contains("keep_on_destroy = true"), "{told}");
    assert_ne!(cluster.get(&["nodeoverlay", &name]), Value::Null);
    assert_eq!(cluster.get(&["crd", OVERLAYS])["metadata"]["deletionTimestamp"], Value::Null);
    stand.assert_empty_plan();

    // One that is on its way out is waited for, no longer than `timeouts` allows.
    cluster.hold(&["nodeoverlay", &name], &json!(["karp.test/hold"]));
    cluster.kubectl(&["delete", "nodeoverlay", &name, "--wait=false"]);
    let late = stand.tofu(&["destroy", "-json", "-auto-approve"]).one_error();
    assert!(late.contains("Gave up waiting") && late.contains(&name), "{late}");
    assert_eq!(cluster.get(&["crd", OVERLAYS])["metadata"]["deletionTimestamp"], Value::Null);
    cluster.hold(&["nodeoverlay", &name], &Value::Null);
    stand.write(&config("  keep_on_destroy = true\n"));
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_ne!(cluster.get(&["crd", OVERLAYS]), Value::Null);
}
