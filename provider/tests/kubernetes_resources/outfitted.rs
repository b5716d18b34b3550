//! A controller of which everything is said that can be said: applied, nothing is left to do, and an import reads it back. What excludes each
//! other is in two forms, one after the other.

use serde_json::{Value, json};

use crate::stand::Cluster;
use crate::{PROVIDER, controllers};

const FULL: &str = r##"
resource "karp_controller" "full" {
  cluster_name        = "demo"
  cluster_endpoint    = "https://demo.eks.example.com"
  namespace           = "NAME"
  create_namespace    = true
  service_account     = "nodes"
  controller_role_arn = "arn:aws:iam::111122223333:role/karp"
  interruption_queue  = "demo"
  image               = "registry.example.com/karp:1.2.3"
  image_pull_policy   = "Always"
  image_pull_secrets  = ["registry"]
  replicas            = 0
  feature_gates       = { NodeRepair = true, SpotToSpotConsolidation = false }
  log_level           = "debug"
  resources           = { requests = { cpu = "500m", memory = "512Mi" }, limits = { memory = "2Gi" } }
  extra_env           = { RUST_BACKTRACE = "1" }
  extra_args          = ["--log-level", "warn"]
  on_fargate          = false
  host_network        = true
  metrics_port        = 9080
  health_probe_port   = 9081
  node_selector       = { "kubernetes.io/os" = "linux" }
  priority_class_name = "system-node-critical"
  labels              = { team = "a" }
  annotations         = { "example.com/team" = "a" }
  pod_annotations     = { "example.com/pod" = "b" }
  pod_labels          = { "example.com/pod" = "c" }
  service_annotations = { "example.com/service" = "d" }

  service_account_annotations = { "example.com/account" = "e" }
  revision_history_limit      = 3
  pod_disruption_budget       = { min_available = "1" }
  update_strategy             = { max_unavailable = "50%", max_surge = "1" }
  more_pod_spec_json          = jsonencode({ terminationGracePeriodSeconds = 60, dnsConfig = { searches = ["example.com"] } })
  more_container_json         = jsonencode({ envFrom = [{ configMapRef = { name = "more", optional = true } }] })
  tolerations = [
    { key = "team", operator = "Equal", value = "a", effect = "NoExecute", toleration_seconds = 60 },
    { operator = "Exists" },
  ]
  topology_spread_constraints = [{
    max_skew             = 1
    topology_key         = "topology.kubernetes.io/zone"
    when_unsatisfiable   = "DoNotSchedule"
    label_selector       = { match_labels = { app = "a" }, match_expressions = [{ key = "b", operator = "In", values = ["c"] }] }
    match_label_keys     = ["pod-template-hash"]
    min_domains          = 2
    node_affinity_policy = "Ignore"
    node_taints_policy   = "Honor"
  }]
  affinity = {
    node_affinity = {
      required_during_scheduling_ignored_during_execution = {
        node_selector_terms = [{
          match_expressions = [{ key = "a", operator = "Gt", values = ["1"] }]
          match_fields      = [{ key = "metadata.name", operator = "NotIn", values = ["x"] }]
        }]
      }
      preferred_during_scheduling_ignored_during_execution = [{
        weight     = 10
        preference = { match_expressions = [{ key = "a", operator = "Exists" }] }
      }]
    }
    pod_affinity = {
      required_during_scheduling_ignored_during_execution = [{
        topology_key        = "kubernetes.io/hostname"
        label_selector      = { match_labels = { app = "cache" } }
        namespaces          = ["default"]
        namespace_selector  = { match_expressions = [{ key = "team", operator = "DoesNotExist" }] }
        match_label_keys    = ["pod-template-hash"]
        mismatch_label_keys = ["team"]
      }]
    }
    pod_anti_affinity = {
      preferred_during_scheduling_ignored_during_execution = [{
        weight            = 100
        pod_affinity_term = { topology_key = "kubernetes.io/hostname", label_selector = { match_labels = { app = "b" } } }
      }]
    }
  }
  service_monitor = {
    labels       = { release = "prometheus" }
    interval     = "30s"
    sample_limit = 10000
    relabelings = [{
      action        = "hashmod"
      modulus       = 4
      regex         = "(.*)"
      replacement   = "$1-x"
      separator     = "/"
      source_labels = ["__address__"]
      target_label  = "shard"
    }]
    metric_relabelings = [{ action = "drop", regex = "go_.*", source_labels = ["__name__"] }]
    more_endpoint_json = jsonencode({ scrapeTimeout = "20s" })
  }
  settings = {
    batch_max_duration                  = "20s"
    batch_idle_duration                 = "2s"
    preference_policy                   = "Ignore"
    min_values_policy                   = "BestEffort"
    max_pod_share                       = "50%"
    price_tolerance                     = "20%"
    consolidation_floor                 = "2%"
    cluster_ca_bundle                   = "Y2E="
    isolated_vpc                        = true
    eks_control_plane                   = true
    vm_memory_overhead_percent          = 0.05
    reserved_enis                       = 1
    ignore_dra_requests                 = true
    disable_cluster_state_observability = true
    disable_dry_run                     = true
    ami_refresh_interval                = "5m"
    subnet_refresh_interval             = "5m"
  }
  force_conflicts = true
  force           = true
  wait            = false
  timeouts        = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
"##;

/// The kind of which the Prometheus operator makes scrape targets, as far as the API server needs to know it; gone at the end.
pub struct Monitors<'a>(&'a Cluster);

impl<'a> Monitors<'a> {
    pub fn define(cluster: &'a Cluster) -> Self {
        let (plural, group) = ("servicemonitors", "monitoring.coreos.com");
        cluster.create(&json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": "ServiceMonitor", "listKind": "ServiceMonitorList", "plural": plural, "singular": "servicemonitor" },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
            },
        }));
        let crd = format!("crd/{plural}.{group}");
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &crd]);
        Self(cluster)
    }
}

impl Drop for Monitors<'_> {
    fn drop(&mut self) {
        self.0.kubectl(&["delete", "--ignore-not-found", "crd/servicemonitors.monitoring.coreos.com"]);
    }
}

#[test]
fn one_of_which_everything_is_said_is_applied_and_read_back() {
    let Some(cluster) = Cluster::find("outfitted") else { return };
    let _turn = controllers();
    let name = cluster.unique("outfitted");
    let _monitors = Monitors::define(&cluster);
    let text = format!("{PROVIDER}{}", FULL.replace("NAME", &name));
    let stand = cluster.stand(&text);
    stand.apply();
    stand.assert_empty_plan();
    let live = |kind: &str| cluster.get(&["-n", &name, kind, "karpenter"])["spec"].clone();
    assert_eq!(live("poddisruptionbudget")["minAvailable"], 1);
    assert_eq!(live("servicemonitor")["endpoints"][0]["scrapeTimeout"], "20s");
    let pod = &live("deployment")["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["terminationGracePeriodSeconds"]), (&json!(true), &json!(60)));

    let other = text.replace("min_available", "max_unavailable");
    stand.write(&other);
    assert_eq!(stand.apply().changes(), [("update".to_owned(), "karp_controller.full".to_owned())]);
    stand.assert_empty_plan();
    assert_eq!(live("poddisruptionbudget")["minAvailable"], Value::Null);

    let block = format!("import {{\n  to = karp_controller.full\n  id = \"{name}/karpenter\"\n}}\n");
    let importer = cluster.stand(&format!("{other}{block}"));
    let run = importer.apply();
    // What only the configuration says, such as limits, is entered by the same apply.
    let changes = run.changes();
    assert!(changes.iter().all(|(action, _)| ["import", "noop", "update"].contains(&&**action)), "{changes:?}");
    importer.assert_empty_plan();

    // What is wanted no more goes.
    let (head, rest) = other.split_once("  service_monitor = {").unwrap();
    let (_, tail) = rest.split_once("\n  }\n").unwrap();
    importer.write(&format!("{head}{tail}"));
    assert_eq!(importer.apply().changes(), [("update".to_owned(), "karp_controller.full".to_owned())]);
    importer.assert_empty_plan();
    assert_eq!(cluster.get(&["-n", &name, "servicemonitor", "karpenter"]), Value::Null);
    importer.destroy();
    assert_eq!(cluster.get(&["namespace", &name]), Value::Null);
}
