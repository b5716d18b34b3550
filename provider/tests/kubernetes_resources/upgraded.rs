//! States of other versions of the provider: an older one's is taken as it is, a newer one's is left alone.

use serde_json::json;

use crate::older::{assert_refused, by_a_newer_version, by_an_older_version};
use crate::stand::Cluster;
use crate::{CRDS, PROVIDER_OF_DEMO, class, pool};

#[test]
fn a_state_of_an_older_version_needs_no_change() {
    let Some(cluster) = Cluster::find_alone("a_state_of_an_older_version_needs_no_change") else { return };
    let name = cluster.unique("older");
    let _namespace = cluster.namespace(&name);
    cluster.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "aws-auth", "namespace": "kube-system" },
        "data": { "mapRoles": "[]\n" } }));
    let config = format!(
        r#"
{PROVIDER_OF_DEMO}
{CRDS}
resource "karp_controller" "this" {{
  namespace  = "{name}"
  image      = "karp:edge"
  replicas   = 0
  depends_on = [karp_crds.this]
}}
resource "karp_aws_auth_entry" "it" {{
  role_arn = "arn:aws:iam::111122223333:role/{name}"
}}
resource "karp_node_overlay" "it" {{
  name             = "{name}"
  price_adjustment = "-30%"
  requirements     = [{{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }}]
  depends_on       = [karp_crds.this]
}}
{}
{}"#,
        class(&name, "  wait_for_ready = false"),
        pool(&name, r#"{ cpu = "100" }"#)
    );
    let stand = cluster.stand(&config);
    stand.apply();
    let state = stand.state().to_string();

    let old = by_an_older_version(&state);
    assert!(old.len() < state.len() && old.contains("taken_away_since"), "{old}");
    stand.put_state(&old);
    stand.assert_empty_plan();

    stand.put_state(&by_a_newer_version(&old));
    assert_refused(&stand.plan());

    stand.put_state(&old);
    stand.apply();
    assert!(!stand.state().to_string().contains("taken_away_since"));
    stand.destroy();
    cluster.kubectl(&["-n", "kube-system", "delete", "configmap", "aws-auth"]);
}
