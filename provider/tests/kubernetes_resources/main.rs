//! The Kubernetes resources under real OpenTofu, on the sandbox's API server (`KARP_TEST_KUBECONFIG`, `KARP_TEST_TOOLS`).

mod controller;
mod crds;
mod denied;
mod drain;
mod edited;
#[path = "../../src/preview/forty/edits.rs"]
mod edits;
mod entries;
mod forty;
mod full;
mod gate;
mod late;
mod many;
mod moved;
#[path = "../../src/preview/forty/objects.rs"]
mod objects;
#[path = "../support/older.rs"]
mod older;
#[path = "../support/others.rs"]
mod others;
mod outfitted;
mod preview;
#[path = "../support/rc.rs"]
mod rc;
mod stand;
mod stopped;
#[allow(dead_code, reason = "each crate of tests uses its part")]
#[path = "../support/tofu.rs"]
mod tofu;
mod upgraded;
mod upkeep;
mod vanished;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use stand::Cluster;

/// A controller is not destroyed while NodeClaims live, and tells of others in the cluster.
static CLAIMS: RwLock<()> = RwLock::new(());

/// For tests with NodeClaims: no controller comes or goes meanwhile.
fn claims() -> RwLockReadGuard<'static, ()> {
    CLAIMS.read().unwrap_or_else(PoisonError::into_inner)
}

/// For tests with a controller: there are no others meanwhile, and no NodeClaims but theirs.
fn controllers() -> RwLockWriteGuard<'static, ()> {
    CLAIMS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The provider, with the sandbox's API server.
const PROVIDER: &str = "provider \"karp\" {\n  kubernetes = { config_path = KUBECONFIG }\n}\n";
/// The same of a cluster that has a name, as a controller wants it.
const PROVIDER_OF_DEMO: &str =
    "provider \"karp\" {\n  cluster_name = \"demo\"\n  kubernetes = { config_path = KUBECONFIG }\n}\n";
/// CRDs stay between tests: others may be using them.
const CRDS: &str = "resource \"karp_crds\" \"this\" {}\n";

fn class(name: &str, more: &str) -> String {
    format!(
        r#"
resource "karp_node_class" "it" {{
  name                          = "{name}"
  instance_profile              = "p"
  ami_selector_terms            = [{{ alias = "al2023@latest" }}]
  subnet_selector_terms         = [{{ id = "subnet-1" }}]
  security_group_selector_terms = [{{ id = "sg-1" }}]
{more}
  depends_on = [karp_crds.this]
}}
"#
    )
}

fn pool(name: &str, limits: &str) -> String {
    format!(
        r#"
resource "karp_node_pool" "it" {{
  name = "{name}"
  template = {{
    labels         = {{ team = "a" }}
    node_class_ref = {{ name = "{name}" }}
    requirements = [
      {{ key = "karpenter.sh/capacity-type", operator = "In", values = ["spot", "on-demand"] }},
      {{ key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"] }},
    ]
    expire_after = "480h"
  }}
  disruption     = {{ consolidate_after = "5s", budgets = [{{ nodes = "100%" }}] }}
  limits         = {limits}
  wait_for_ready = false
  depends_on     = [karp_crds.this]
}}
"#
    )
}

#[test]
fn all_of_it_comes_in_one_apply_and_goes_in_one_destroy() {
    let Some(cluster) = Cluster::find("all_of_it_comes_in_one_apply_and_goes_in_one_destroy") else { return };
    let _turn = controllers();
    let name = cluster.unique("whole");
    let stand = cluster.stand(&format!(
        r#"
resource "terraform_data" "cluster" {{ input = "demo" }}
provider "karp" {{
  cluster_name = terraform_data.cluster.output
  kubernetes   = {{ config_path = KUBECONFIG }}
}}
resource "karp_crds" "this" {{
  keep_on_destroy = terraform_data.cluster.output == "demo"
}}
resource "karp_node_overlay" "it" {{
  name             = "{name}"
  price_adjustment = "-${{length(terraform_data.cluster.output)}}%"
  requirements     = [{{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }}]
  depends_on       = [karp_crds.this]
}}
resource "karp_controller" "this" {{
  cluster_name        = terraform_data.cluster.output
  namespace           = "{name}"
  image               = "karp:edge"
  replicas            = 0
  controller_role_arn = "arn:aws:iam::123456789012:role/${{terraform_data.cluster.output}}"
  feature_gates       = {{ SpotToSpotConsolidation = true }}
  resources           = {{ requests = {{ cpu = "1000m" }} }}
}}
resource "karp_node_class" "it" {{
  name                          = "{name}"
  instance_profile              = "profile-${{terraform_data.cluster.output}}"
  ami_selector_terms            = [{{ alias = "al2023@latest" }}]
  subnet_selector_terms         = [{{ tags = {{ "karpenter.sh/discovery" = terraform_data.cluster.output }} }}]
  security_group_selector_terms = [{{ id = "sg-1" }}]
  kubelet                       = {{ max_pods = 58 }}
  wait_for_ready                = false
  depends_on                    = [karp_crds.this]
}}
{}"#,
        pool(&name, r#"{ cpu = "100" }"#)
    ));
    stand.apply();
    stand.assert_empty_plan();
    let deployment = cluster.get(&["-n", &name, "deployment", "karpenter"]);
    assert_eq!(deployment["spec"]["template"]["spec"]["dnsPolicy"], "Default");
    let class = cluster.get(&["ec2nodeclass", &name]);
    assert_eq!(class["spec"]["kubelet"]["maxPods"], 58);
    assert_eq!(cluster.get(&["nodeoverlay", &name])["spec"]["priceAdjustment"], "-4%");
    // A refresh counts.
    stand.apply();
    let state = stand.state();
    let controllers = state["resources"].as_array().unwrap();
    let own = controllers.iter().find(|one| one["type"] == "karp_controller").unwrap();
    assert_eq!(own["instances"][0]["attributes"]["ready_replicas"], 0, "{own}");
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(cluster.get(&["nodepool", &name]), Value::Null);
    assert_eq!(cluster.get(&["ec2nodeclass", &name]), Value::Null);
    assert_eq!(cluster.get(&["namespace", &name]), Value::Null);
}

#[test]
fn a_change_of_others_shows_and_their_fields_are_not_taken() {
    let Some(cluster) = Cluster::find("a_change_of_others_shows_and_their_fields_are_not_taken") else { return };
    let name = cluster.unique("drift");
    let with = |limits: &str| format!("{PROVIDER}{CRDS}{}", pool(&name, limits));
    let stand = cluster.stand(&with(r#"{ cpu = "100" }"#));
    stand.apply();
    // A field that the configuration does not have is another's business.
    cluster.kubectl(&["patch", "nodepool", &name, "--type=merge", "-p", r#"{"spec":{"weight":7}}"#]);
    stand.assert_empty_plan();
    // The same amount in another spelling is no change.
    stand.write(&with(r#"{ cpu = "100000m" }"#));
    stand.assert_empty_plan();
    cluster.kubectl(&["patch", "nodepool", &name, "--type=merge", "-p", r#"{"spec":{"limits":{"cpu":"50"}}}"#]);
    let plan = stand.plan();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_node_pool.it".to_owned())], "{}", plan.text);
    let refused = stand.apply_failing().one_error();
    assert!(refused.contains("spec.limits.cpu (kubectl"), "{refused}");
    stand.write(
        &with(r#"{ cpu = "100" }"#)
            .replace("wait_for_ready = false", "wait_for_ready = false\n  force_conflicts = true"),
    );
    stand.apply();
    stand.assert_empty_plan();
    let live = cluster.get(&["nodepool", &name]);
    assert_eq!((&live["spec"]["limits"]["cpu"], &live["spec"]["weight"]), (&"100".into(), &7.into()));
    stand.destroy();
}

#[test]
fn a_pool_made_elsewhere_is_imported_without_a_difference() {
    let Some(cluster) = Cluster::find("a_pool_made_elsewhere_is_imported_without_a_difference") else { return };
    let name = cluster.unique("import");
    let config = format!("{PROVIDER}{CRDS}{}", pool(&name, r#"{ cpu = "100" }"#));
    let maker = cluster.stand(&config);
    maker.apply();
    let importer = cluster.stand(&config.replace("  wait_for_ready = false\n", ""));
    let exists = importer.apply_failing().one_error();
    assert!(exists.contains("adopt = true"), "{exists}");
    assert!(exists.contains("written by ") && exists.contains("terraform-provider-karp"), "{exists}");
    let imported = importer.tofu(&["import", "-no-color", "karp_node_pool.it", &name]);
    assert_eq!(imported.code, 0, "{}", imported.text);
    importer.assert_empty_plan();
    maker.destroy();
}

#[test]
fn the_controller_stays_while_nodes_live_that_only_it_can_end() {
    let Some(cluster) = Cluster::find("the_controller_stays_while_nodes_live_that_only_it_can_end") else { return };
    let _turn = controllers();
    let name = cluster.unique("stays");
    let _namespace = cluster.namespace(&name);
    let config = |more: &str| {
        format!(
            r#"
{PROVIDER_OF_DEMO}
{CRDS}
resource "karp_controller" "this" {{
  namespace  = "{name}"
  image      = "karp:edge"
  replicas   = 0
{more}
  depends_on = [karp_crds.this]
}}
"#
        )
    };
    let stand = cluster.stand(&config(""));
    stand.apply();
    cluster.create(&serde_json::json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name },
        "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" }, "requirements": [] }
    }));
    let run = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert!(run.one_error().contains("NodeClaim"), "{}", run.text);
    assert!(run.warnings().iter().any(|w| w["summary"].as_str().unwrap().contains("Nodes live")), "{}", run.text);
    assert_ne!(cluster.get(&["-n", &name, "deployment", "karpenter"]), Value::Null);

    // As the error says: it goes by force, and the claim stays with whoever asked for that.
    stand.write(&config("  force      = true"));
    assert_eq!(stand.apply().changes(), [("update".to_owned(), "karp_controller.this".to_owned())]);
    let run = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(!run.warnings().iter().any(|w| w["summary"].as_str().unwrap().contains("Nodes live")), "{}", run.text);
    assert_eq!(cluster.get(&["-n", &name, "deployment", "karpenter"]), Value::Null);
    let claim = cluster.get(&["nodeclaim", &name]);
    assert!(claim.is_object() && claim["metadata"]["deletionTimestamp"].is_null(), "{claim}");
    cluster.kubectl(&["delete", "nodeclaim", &name]);
}

#[test]
fn what_the_api_server_would_refuse_is_refused_without_it() {
    let Some(cluster) = Cluster::find("what_the_api_server_would_refuse_is_refused_without_it") else { return };
    // No API server at this address: validation never dials.
    let block = "provider \"karp\" {\n  kubernetes = { host = \"https://192.0.2.1\" }\n}\n";
    for (from, to, at) in [
        ("\"480h\"", "\"30d\"", "template.expire_after"),
        ("[\"4\"]", "[\"-4\"]", "template.requirements[1]"),
        ("team = \"a\"", "\"karpenter.sh/nodepool\" = \"a\"", "template.labels"),
        ("\"100%\"", "\"101%\"", "disruption.budgets[0].nodes"),
    ] {
        let config = format!("{block}{CRDS}{}", pool("bad", r#"{ cpu = "100" }"#).replace(from, to));
        let run = cluster.stand(&config).tofu(&["validate", "-json"]);
        let found: Value = serde_json::from_str(&run.text).unwrap();
        let errors: Vec<&Value> =
            found["diagnostics"].as_array().unwrap().iter().filter(|d| d["severity"] == "error").collect();
        assert_eq!(errors.len(), 1, "{at}: {}", run.text);
        let text = format!("{} {}", errors[0]["summary"], errors[0]["detail"]);
        assert!(text.contains("refuse") && errors[0]["snippet"]["code"].is_string(), "{at}: {text}");
    }
}
