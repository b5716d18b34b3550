//! The controller's objects, in the order in which they are applied.

use std::collections::{BTreeMap, BTreeSet};

use karp_kube::rbac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::controller_settings::SETTINGS;
use super::placement;
pub use super::upkeep::ServiceMonitor;
use super::upkeep::{DisruptionBudget, HISTORY, UpdateStrategy};

/// The name of all objects, and of the controller in labels.
pub const NAME: &str = "karpenter";
/// The label that tells the version of the Deployment and its pods, as in Karpenter's chart.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The label that tells what is karp's; a namespace that it made has it, too.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The port of metrics, where nothing else is said.
pub const METRICS_PORT: i64 = 8080;
/// The port of probes, where nothing else is said.
pub const PROBE_PORT: i64 = 8081;
/// The user of the image.
const USER: i64 = 65532;
/// The path of ServiceMonitors, whose CRD is the Prometheus operator's.
pub const SERVICE_MONITORS: &str = "servicemonitors";
/// The controller ends within 25 s.
pub const GRACE_SECONDS: i64 = 30;

/// What the controller is told, from the attributes of `karp_controller`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub cluster_name: Option<String>,
    pub cluster_endpoint: Option<String>,
    pub namespace: Option<String>,
    pub service_account: Option<String>,
    pub create_namespace: Option<bool>,
    pub image: Option<String>,
    pub image_pull_policy: Option<String>,
    pub replicas: Option<i64>,
    pub controller_role_arn: Option<String>,
    pub interruption_queue: Option<String>,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    pub log_level: Option<String>,
    pub resources: Option<Resources>,
    pub extra_env: Option<BTreeMap<String, String>>,
    pub extra_args: Option<Vec<String>>,
    pub on_fargate: Option<bool>,
    pub node_selector: Option<BTreeMap<String, String>>,
    pub priority_class_name: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    /// What each of [`SETTINGS`] is; null where it is left out.
    pub settings: Option<BTreeMap<String, Value>>,
    pub annotations: Option<BTreeMap<String, String>>,
    pub pod_annotations: Option<BTreeMap<String, String>>,
    pub pod_labels: Option<BTreeMap<String, String>>,
    pub service_annotations: Option<BTreeMap<String, String>>,
    pub pod_disruption_budget: Option<DisruptionBudget>,
    pub update_strategy: Option<UpdateStrategy>,
    pub revision_history_limit: Option<i64>,
    pub service_account_annotations: Option<BTreeMap<String, String>>,
    pub image_pull_secrets: Option<BTreeSet<String>>,
    pub tolerations: Option<Vec<Toleration>>,
    /// As the attributes are; in the API's spelling by [`placement`].
    pub affinity: Option<Value>,
    pub topology_spread_constraints: Option<Vec<Value>>,
    pub host_network: Option<bool>,
    pub metrics_port: Option<i64>,
    pub health_probe_port: Option<i64>,
    pub more_pod_spec_json: Option<String>,
    pub more_container_json: Option<String>,
    pub service_monitor: Option<ServiceMonitor>,
}

/// A taint that the pods tolerate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// What the container asks for and may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, String>>,
}

/// One object with the path of its kind.
pub struct Object {
    pub plural: &'static str,
    pub json: Value,
}

impl Settings {
    /// Gives the namespace that the controller lives in.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(NAME)
    }

    fn gate(&self, name: &str) -> bool {
        self.feature_gates.as_ref().and_then(|gates| gates.get(name)).copied().unwrap_or(false)
    }

    fn account(&self) -> &str {
        self.service_account.as_deref().unwrap_or(NAME)
    }

    fn metadata(&self, name: &str, namespace: Option<&str>) -> Value {
        let mut labels = BTreeMap::from([
            ("app.kubernetes.io/name", NAME),
            ("app.kubernetes.io/instance", NAME),
            (MANAGED_BY, "karp"),
        ]);
        labels.extend(self.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())));
        let mut metadata = json!({ "name": name, "labels": labels });
        if let Some(annotations) = self.annotations.as_ref().filter(|annotations| !annotations.is_empty()) {
            metadata["annotations"] = json!(annotations);
        }
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        metadata
    }

    /// Gives the namespace object; it is applied only where it is not there yet.
    pub fn namespace_object(&self) -> Object {
        Object {
            plural: "namespaces",
            json: json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": self.metadata(self.namespace(), None) }),
        }
    }

    /// Gives all other objects in the order of their dependence.
    pub fn objects(&self) -> Vec<Object> {
        let mut objects = vec![self.service_account()];
        objects.extend(self.roles());
        objects.extend([self.service(), self.disruption_budget(), self.deployment()]);
        objects.extend(self.service_monitor.as_ref().map(|monitor| self.monitor(monitor)));
        objects
    }

    fn service_account(&self) -> Object {
        let mut metadata = self.metadata(self.account(), Some(self.namespace()));
        for (key, value) in self.service_account_annotations.iter().flatten() {
            metadata["annotations"][key] = json!(value);
        }
        if let Some(role) = &self.controller_role_arn {
            metadata["annotations"]["eks.amazonaws.com/role-arn"] = json!(role);
        }
        Object {
            plural: "serviceaccounts",
            json: json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
        }
    }

    fn roles(&self) -> Vec<Object> {
        let mut admin = self.metadata(&format!("{NAME}-admin"), None);
        admin["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] = json!("true");
        let everywhere = self.metadata(NAME, None);
        let here = self.metadata(NAME, Some(self.namespace()));
        let account = (self.namespace(), self.account());
        let object = |plural, json| Object { plural, json };
        vec![
            object("clusterroles", rbac::role(&everywhere, &rbac::cluster_rules(|gate| self.gate(gate)))),
            object("clusterrolebindings", rbac::binding(&everywhere, account)),
            object("clusterroles", rbac::role(&admin, &rbac::admin_rules())),
            object("roles", rbac::role(&here, &rbac::lease_rules())),
            object("rolebindings", rbac::binding(&here, account)),
        ]
    }

    fn service(&self) -> Object {
        let mut metadata = self.metadata(NAME, Some(self.namespace()));
        for (key, value) in self.service_annotations.iter().flatten() {
            metadata["annotations"][key] = json!(value);
        }
        Object {
            plural: "services",
            json: json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {
                    "type": "ClusterIP",
                    "selector": selector(),
                    "ports": [{ "name": "http-metrics", "port": self.metrics_port(), "targetPort": "http-metrics", "protocol": "TCP" }],
                },
            }),
        }
    }

    fn monitor(&self, monitor: &ServiceMonitor) -> Object {
        let mut metadata = self.metadata(NAME, Some(self.namespace()));
        for (key, value) in monitor.labels.iter().flatten() {
            metadata["labels"][key] = json!(value);
        }
        let mut spec = json!({
            "namespaceSelector": { "matchNames": [self.namespace()] },
            "selector": { "matchLabels": selector() },
            "endpoints": [monitor.endpoint()],
        });
        if let Some(limit) = monitor.sample_limit {
            spec["sampleLimit"] = json!(limit);
        }
        Object {
            plural: SERVICE_MONITORS,
            json: json!({
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "ServiceMonitor",
                "metadata": metadata,
                "spec": spec,
            }),
        }
    }

    fn disruption_budget(&self) -> Object {
        let mut spec = DisruptionBudget::fields(self.pod_disruption_budget.as_ref());
        spec.insert("selector".to_owned(), json!({ "matchLabels": selector() }));
        Object {
            plural: "poddisruptionbudgets",
            json: json!({
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": self.metadata(NAME, Some(self.namespace())),
                "spec": spec,
            }),
        }
    }

    fn deployment(&self) -> Object {
        let mut metadata = self.metadata(NAME, Some(self.namespace()));
        let mut pods = json!({ "labels": self.pod_labels() });
        if let Some(version) = self.image.as_deref().and_then(version).filter(|version| is_label(version)) {
            for labels in [&mut metadata["labels"], &mut pods["labels"]] {
                if labels[VERSION_LABEL].is_null() {
                    labels[VERSION_LABEL] = json!(version);
                }
            }
        }
        if let Some(annotations) = self.pod_annotations.as_ref().filter(|annotations| !annotations.is_empty()) {
            pods["annotations"] = json!(annotations);
        }
        Object {
            plural: "deployments",
            json: json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata,
                "spec": {
                    "replicas": self.replicas.unwrap_or(2),
                    "revisionHistoryLimit": self.revision_history_limit.unwrap_or(HISTORY),
                    "strategy": UpdateStrategy::fields(self.update_strategy.as_ref()),
                    "selector": { "matchLabels": selector() },
                    "template": { "metadata": pods, "spec": self.pod() },
                },
            }),
        }
    }

    fn pod_labels(&self) -> BTreeMap<&str, &str> {
        let mut labels = selector();
        let own = self.labels.iter().chain(&self.pod_labels).flatten();
        labels.extend(own.map(|(key, value)| (key.as_str(), value.as_str())));
        labels
    }

    fn on_fargate(&self) -> bool {
        self.on_fargate.unwrap_or(true)
    }

    fn affinity(&self) -> Option<Value> {
        match &self.affinity {
            Some(given) => Some(placement::affinity_fields(given)),
            None if self.on_fargate() => None,
            None => Some(usual_affinity()),
        }
    }

    fn pod(&self) -> Value {
        let mut selector = BTreeMap::from([("kubernetes.io/os", "linux")]);
        selector.extend(self.node_selector.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())));
        let mut pod = json!({
            "serviceAccountName": self.account(),
            "priorityClassName": self.priority_class_name.as_deref().unwrap_or("system-cluster-critical"),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": { "fsGroup": USER },
            // There is no cluster DNS before the first node; the controller needs only AWS's names, which the host resolves.
            "dnsPolicy": match (self.on_fargate(), self.host_network) {
                (true, _) => "Default",
                (false, Some(true)) => "ClusterFirstWithHostNet",
                (false, _) => "ClusterFirst",
            },
            "nodeSelector": selector,
            "tolerations": match &self.tolerations {
                Some(tolerations) => json!(tolerations),
                None => json!([{ "key": "CriticalAddonsOnly", "operator": "Exists" }]),
            },
            "containers": [self.container()],
        });
        if let Some(secrets) = self.image_pull_secrets.as_ref().filter(|secrets| !secrets.is_empty()) {
            pod["imagePullSecrets"] = secrets.iter().map(|name| json!({ "name": name })).collect();
        }
        if let Some(affinity) = self.affinity() {
            pod["affinity"] = affinity;
        }
        if let Some(spread) = self.topology_spread_constraints.as_ref().filter(|all| !all.is_empty()) {
            pod["topologySpreadConstraints"] = placement::spread_fields(spread, &self::selector());
        }
        if self.host_network == Some(true) {
            pod["hostNetwork"] = json!(true);
        }
        more(&mut pod, self.more_pod_spec_json.as_deref());
        pod
    }

    fn container(&self) -> Value {
        let args: Vec<&str> =
            std::iter::once("controller").chain(self.extra_args.iter().flatten().map(String::as_str)).collect();
        let default = Resources {
            requests: Some(BTreeMap::from([
                ("cpu".to_owned(), "250m".to_owned()),
                ("memory".to_owned(), "256Mi".to_owned()),
            ])),
            limits: Some(BTreeMap::from([("memory".to_owned(), "1Gi".to_owned())])),
        };
        let probe = |path: &str, delay: u32| {
            json!({
                "httpGet": { "path": path, "port": "http" },
                "initialDelaySeconds": delay,
                "periodSeconds": 5,
                "timeoutSeconds": 5,
            })
        };
        let mut container = json!({
            "name": "controller",
            "image": self.image,
            "args": args,
            "env": self.environment(),
            "ports": [self.port("http-metrics", self.metrics_port()), self.port("http", self.probe_port())],
            "livenessProbe": probe("/healthz", 10),
            "readinessProbe": probe("/readyz", 1),
            "resources": self.resources.clone().unwrap_or(default),
            "securityContext": {
                "runAsUser": USER,
                "runAsGroup": USER,
                "runAsNonRoot": true,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
                "seccompProfile": { "type": "RuntimeDefault" },
            },
        });
        if let Some(policy) = &self.image_pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        more(&mut container, self.more_container_json.as_deref());
        container
    }

    /// Gives the port of metrics.
    fn metrics_port(&self) -> i64 {
        self.metrics_port.unwrap_or(METRICS_PORT)
    }

    /// Gives the port of probes.
    fn probe_port(&self) -> i64 {
        self.health_probe_port.unwrap_or(PROBE_PORT)
    }

    fn port(&self, name: &str, number: i64) -> Value {
        let mut port = json!({ "name": name, "containerPort": number, "protocol": "TCP" });
        if self.host_network == Some(true) {
            // What the API server fills in itself would stay when the pods leave the node's network.
            port["hostPort"] = json!(number);
        }
        port
    }

    fn environment(&self) -> Vec<Value> {
        let field = |path: &str| json!({ "fieldRef": { "apiVersion": "v1", "fieldPath": path } });
        let mut plain: BTreeMap<&str, String> = BTreeMap::from([
            ("KUBERNETES_MIN_VERSION", "1.26.0".to_owned()),
            ("KARPENTER_SERVICE", NAME.to_owned()),
            ("METRICS_PORT", self.metrics_port().to_string()),
            ("HEALTH_PROBE_PORT", self.probe_port().to_string()),
            ("LOG_LEVEL", self.log_level.clone().unwrap_or_else(|| "info".to_owned())),
            ("LEADER_ELECTION_NAMESPACE", self.namespace().to_owned()),
        ]);
        let optional = [
            ("CLUSTER_NAME", &self.cluster_name),
            ("CLUSTER_ENDPOINT", &self.cluster_endpoint),
            ("INTERRUPTION_QUEUE", &self.interruption_queue),
        ];
        plain.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        if let Some(gates) = self.feature_gates.as_ref().filter(|gates| !gates.is_empty()) {
            let gates: Vec<String> = gates.iter().map(|(gate, on)| format!("{gate}={on}")).collect();
            plain.insert("FEATURE_GATES", gates.join(","));
        }
        let settings = self.settings.iter().flatten();
        plain.extend(settings.filter_map(|(name, value)| SETTINGS.iter().find(|one| one.name == name)?.told(value)));
        // The user's own environment wins.
        plain.extend(self.extra_env.iter().flatten().map(|(name, value)| (name.as_str(), value.clone())));
        let named = plain.into_iter().map(|(name, value)| json!({ "name": name, "value": value }));
        let told = [("SYSTEM_NAMESPACE", "metadata.namespace"), ("POD_NAME", "metadata.name")];
        named.chain(told.into_iter().map(|(name, path)| json!({ "name": name, "valueFrom": field(path) }))).collect()
    }
}

/// Gives the affinity of pods that run on nodes: a controller on a node of its own making could end its own node.
pub fn usual_affinity() -> Value {
    let apart = json!({ "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": "DoesNotExist" }] });
    let own = json!({ "labelSelector": { "matchLabels": selector() }, "topologyKey": "kubernetes.io/hostname" });
    json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [apart] } },
        "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [own] },
    })
}

/// Reads the version of an image, which is its tag: `0.1.0` of `ghcr.io/karp/karp:0.1.0@sha256:…`.
pub fn version(image: &str) -> Option<&str> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
    (!tag.is_empty()).then_some(tag)
}

/// Says whether a tag may be a label's value: at most 63 characters, and a letter or digit at both ends.
fn is_label(tag: &str) -> bool {
    let end = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    tag.len() <= 63 && end(tag.chars().next()) && end(tag.chars().next_back())
}

/// Merges more of an object over it; validation has seen that it is JSON.
pub fn more(object: &mut Value, text: Option<&str>) {
    if let Some(patch) = text.and_then(|text| serde_json::from_str(text).ok()) {
        json_patch::merge(object, &patch);
    }
}

/// Gives the labels of the controller's pods, by which `kubectl logs -l app.kubernetes.io/name=karpenter` finds the controller.
pub fn selector() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([("app.kubernetes.io/name", NAME), ("app.kubernetes.io/instance", NAME)])
}

#[cfg(test)]
mod tests;
