//! Where each value of Karpenter's chart (1.14) is with karp, or why it is nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use tfplugin::schema::{Kind, Mode};
use tfplugin::{Attribute, Resource as _, Value};

use crate::resources::controller::Controller;

/// A value, and behind it: an attribute of `karp_controller`; or one of its JSON attributes with the field that takes it there; or `-` and why not.
const VALUES: &str = "
nameOverride                            - who looks for a controller finds it by one name
fullnameOverride                        - who looks for a controller finds it by one name
additionalLabels                        labels
additionalAnnotations                   annotations
imagePullPolicy                         image_pull_policy
imagePullSecrets                        image_pull_secrets
service.annotations                     service_annotations
serviceAccount.create                   - it is always made, and stays where others use it, too
serviceAccount.name                     service_account
serviceAccount.annotations              service_account_annotations
additionalClusterRoleRules              - the controller has the rights that it uses; a ClusterRole of one's own gives others to its account
serviceMonitor.enabled                  service_monitor
serviceMonitor.additionalLabels         service_monitor.labels
serviceMonitor.relabelings              service_monitor.relabelings
serviceMonitor.metricRelabelings        service_monitor.metric_relabelings
serviceMonitor.endpointConfig           service_monitor.more_endpoint_json
serviceMonitor.sampleLimit              service_monitor.sample_limit
replicas                                replicas
revisionHistoryLimit                    revision_history_limit
strategy                                update_strategy
podLabels                               pod_labels
podAnnotations                          pod_annotations
podDisruptionBudget.name                - it is called as the Deployment is
podDisruptionBudget.maxUnavailable      pod_disruption_budget.max_unavailable
podSecurityContext                      more_pod_spec_json securityContext
priorityClassName                       priority_class_name
terminationGracePeriodSeconds           more_pod_spec_json terminationGracePeriodSeconds
hostNetwork                             host_network
schedulerName                           more_pod_spec_json schedulerName
dnsPolicy                               more_pod_spec_json dnsPolicy
dnsConfig                               more_pod_spec_json dnsConfig
initContainers                          more_pod_spec_json initContainers
nodeSelector                            node_selector
affinity                                affinity
topologySpreadConstraints               topology_spread_constraints
tolerations                             tolerations
extraVolumes                            more_pod_spec_json volumes
controller.containerName                - one name, by which an import tells the container
controller.image.repository             image
controller.image.tag                    image
controller.image.digest                 image
controller.env                          extra_env
controller.envFrom                      more_container_json envFrom
controller.securityContext              more_container_json securityContext
controller.resources                    resources
controller.extraVolumeMounts            more_container_json volumeMounts
controller.sidecarContainer             - one of another Deployment, or an init container that restarts: more_pod_spec_json.initContainers
controller.sidecarVolumeMounts          - as the sidecar
controller.metrics.port                 metrics_port
controller.healthProbe.port             health_probe_port
logLevel                                log_level
logOutputPaths                          - the log goes to the container's output, which Kubernetes keeps
logErrorOutputPaths                     - the log goes to the container's output, which Kubernetes keeps
settings.batchMaxDuration               settings.batch_max_duration
settings.batchIdleDuration              settings.batch_idle_duration
settings.preferencePolicy               settings.preference_policy
settings.minValuesPolicy                settings.min_values_policy
settings.clusterCABundle                settings.cluster_ca_bundle
settings.clusterName                    cluster_name
settings.clusterEndpoint                cluster_endpoint
settings.isolatedVPC                    settings.isolated_vpc
settings.eksControlPlane                settings.eks_control_plane
settings.vmMemoryOverheadPercent        settings.vm_memory_overhead_percent
settings.interruptionQueue              interruption_queue
settings.enableZonalShift               - zonal shifts are not listened to yet
settings.reservedENIs                   settings.reserved_enis
settings.ignoreDRARequests              settings.ignore_dra_requests
settings.disableClusterStateObservability settings.disable_cluster_state_observability
settings.disableDryRun                  settings.disable_dry_run
settings.amiRefreshInterval             settings.ami_refresh_interval
settings.subnetRefreshInterval          settings.subnet_refresh_interval
settings.featureGates                   feature_gates
settings.awsFeatureGates.nodeClassCEL   - the rules of the class are always those of its definition
";

fn find<'a>(attributes: &'a BTreeMap<String, Attribute>, path: &str) -> Option<&'a Attribute> {
    let Some((name, rest)) = path.split_once('.') else { return attributes.get(path) };
    match &attributes.get(name)?.kind {
        Kind::Nested(_, inner) => find(inner, rest),
        Kind::Value(_) => None,
    }
}

#[test]
fn each_value_of_karpenters_chart_has_a_place_or_a_reason() {
    let controller = Controller::new(&Arc::default());
    let (attributes, mut values) = (controller.schema().attributes, BTreeSet::new());
    for row in VALUES.lines().filter(|row| !row.is_empty()) {
        let (value, place) = row.split_once(' ').unwrap();
        assert!(values.insert(value), "{value} is there twice");
        let place: Vec<&str> = place.split_whitespace().collect();
        match place.as_slice() {
            ["-", reason @ ..] => assert!(reason.len() > 2, "{value}: no reason"),
            [path] => {
                let found = find(&attributes, path).unwrap_or_else(|| panic!("{value}: there is no {path}"));
                assert!(found.mode != Mode::Computed, "{value}: {path} cannot be written");
            }
            // A field that has an attribute of its own is refused in the JSON.
            [path, field] => {
                assert!(find(&attributes, path).is_some(), "{value}: there is no {path}");
                let config = Value::from(json!({ (*path): json!({ (*field): {} }).to_string() }));
                let found = controller.validate(&config).to_string();
                assert!(!found.contains(field), "{value}: {found}");
            }
            other => panic!("{value}: {other:?}"),
        }
    }
    assert!(values.len() > 70, "{}", values.len());
}
