//! The attributes of a `karp_controller` as its live objects tell them: what an import begins with.

use std::collections::BTreeMap;

use karp_domain::flag;
use serde_json::{Map, Value as Json, json};
use tfplugin::Value;

use crate::manifests::controller::{
    METRICS_PORT, NAME, PROBE_PORT, Settings, VERSION_LABEL, selector, usual_affinity, version,
};
use crate::manifests::controller_settings::{Form, SETTINGS, Setting};
use crate::manifests::upkeep::{DisruptionBudget, HISTORY, ServiceMonitor, UpdateStrategy};
use crate::manifests::{FIELD_MANAGER, owned, placement};

/// What an import looks at; null for an object that is not there.
pub struct Live {
    pub deployment: Json,
    pub account: Json,
    pub service: Json,
    pub budget: Json,
    pub monitor: Json,
}

/// The role of the service account, for IRSA.
const ROLE: &str = "eks.amazonaws.com/role-arn";
/// Labels that all objects have.
const LABELS: [&str; 3] = ["app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"];
/// Attributes with a variable of their own.
const VARIABLES: [(&str, &str); 4] = [
    ("cluster_name", "CLUSTER_NAME"),
    ("cluster_endpoint", "CLUSTER_ENDPOINT"),
    ("interruption_queue", "INTERRUPTION_QUEUE"),
    ("log_level", "LOG_LEVEL"),
];
/// The same of ports, each with what it is otherwise.
const PORTS: [(&str, &str, i64); 2] =
    [("metrics_port", "METRICS_PORT", METRICS_PORT), ("health_probe_port", "HEALTH_PROBE_PORT", PROBE_PORT)];
/// Fields of the container that have attributes of their own.
const OF_CONTAINER: [&str; 5] = ["args", "env", "image", "imagePullPolicy", "resources"];

/// Completes the state of an import. What this provider applied tells all; of what others made (Karpenter's chart), the parts that have
/// the same meaning are taken.
pub fn recovered(state: &Value, live: &Live) -> Value {
    let applied = owned::by(&live.deployment, FIELD_MANAGER);
    let deployment = applied.as_ref().unwrap_or(&live.deployment);
    let pod = &deployment["spec"]["template"]["spec"];
    let mut state = of_metadata(state.clone(), live, deployment, applied.is_some());
    state = of_container(state, container_of(pod));
    state = of_pod(state, pod);
    if applied.is_none() {
        let on_fargate = pod["dnsPolicy"] == "Default";
        return state.with("on_fargate", on_fargate).with("affinity", affinity(pod, on_fargate));
    }
    // Whether it is on Fargate shows in several places, any of which the user may have changed: the fewer such changes, the likelier.
    let rest = |on_fargate: bool| {
        let affinity = affinity(&deployment["spec"]["template"]["spec"], on_fargate);
        let own = if affinity.is_null() { 0 } else { pod["affinity"].to_string().len() };
        let state = state.clone().with("on_fargate", on_fargate).with("affinity", affinity);
        let (pod, container) = more(&state, deployment);
        let length = |patch: &Option<Json>| patch.as_ref().map_or(0, |patch| patch.to_string().len());
        let text = |patch: Option<Json>| Value::from(patch.map(|patch| patch.to_string()));
        (own + length(&pod), state.with("more_pod_spec_json", text(pod)).with("more_container_json", text(container)))
    };
    let (fargate, nodes) = (rest(true), rest(false));
    // Where the rest says nothing, only pods on nodes have an affinity or the node's network.
    let placed = !pod["affinity"].is_null() || pod["hostNetwork"] == true;
    if nodes.0 < fargate.0 || (nodes.0 == fargate.0 && placed) { nodes.1 } else { fargate.1 }
}

/// Reads labels and annotations; those of a stranger's objects are its own.
fn of_metadata(state: Value, live: &Live, deployment: &Json, is_ours: bool) -> Value {
    let account = owned::by(&live.account, FIELD_MANAGER);
    let account = account.as_ref().unwrap_or(&live.account);
    let role = account["metadata"]["annotations"][ROLE].as_str();
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
    let state = state.with("controller_role_arn", role).with("replicas", replicas);
    if !is_ours {
        return state;
    }
    let all = texts(&deployment["metadata"]["annotations"]);
    let mut of_account = texts(&account["metadata"]["annotations"]);
    of_account.retain(|name, value| name != ROLE && all.get(name) != Some(value));
    let mut labels = texts(&deployment["metadata"]["labels"]);
    let tag = image_of(deployment).and_then(version);
    labels.retain(|name, _| !LABELS.contains(&name.as_str()));
    labels.retain(|name, value| name != VERSION_LABEL || tag != Some(value.as_str()));
    let mut of_pods = texts(&deployment["spec"]["template"]["metadata"]["labels"]);
    of_pods.retain(|name, value| !selector().contains_key(name.as_str()) && labels.get(name) != Some(value));
    of_pods.retain(|name, value| name != VERSION_LABEL || tag != Some(value.as_str()));
    let service = owned::by(&live.service, FIELD_MANAGER).unwrap_or_default();
    let mut of_service = texts(&service["metadata"]["annotations"]);
    of_service.retain(|name, value| all.get(name) != Some(value));
    let budget = owned::by(&live.budget, FIELD_MANAGER).unwrap_or_default();
    let history = deployment["spec"]["revisionHistoryLimit"].as_i64().filter(|limit| *limit != HISTORY);
    let monitor = monitor(&live.monitor, &labels);
    state
        .with("labels", some(labels))
        .with("annotations", some(all))
        .with("service_account_annotations", some(of_account))
        .with("pod_annotations", some(texts(&deployment["spec"]["template"]["metadata"]["annotations"])))
        .with("pod_labels", some(of_pods))
        .with("service_annotations", some(of_service))
        .with("pod_disruption_budget", DisruptionBudget::read(&budget["spec"]))
        .with("update_strategy", UpdateStrategy::read(&deployment["spec"]["strategy"]))
        .with("revision_history_limit", history)
        .with("service_monitor", monitor)
}

fn monitor(live: &Json, of_all: &BTreeMap<String, String>) -> Value {
    let Some(applied) = owned::by(live, FIELD_MANAGER) else { return Value::Null };
    let mut labels = texts(&applied["metadata"]["labels"]);
    labels.retain(|name, value| !LABELS.contains(&name.as_str()) && of_all.get(name) != Some(value));
    Value::object([("labels", some(labels))].into_iter().chain(ServiceMonitor::read(&applied["spec"])))
}

fn of_pod(state: Value, pod: &Json) -> Value {
    let mut nodes = texts(&pod["nodeSelector"]);
    nodes.retain(|name, value| !(name == "kubernetes.io/os" && value == "linux"));
    let secrets = pod["imagePullSecrets"].as_array().into_iter().flatten();
    let secrets: Vec<Value> = secrets.filter_map(|secret| Some(Value::from(secret["name"].as_str()?))).collect();
    let usual = json!([{ "key": "CriticalAddonsOnly", "operator": "Exists" }]);
    let tolerations = match pod["tolerations"].as_array() {
        Some(all) if pod["tolerations"] != usual => Value::List(all.iter().map(toleration).collect()),
        Some(_) => Value::Null,
        None => Value::List(Vec::new()),
    };
    let state = state
        .with("service_account", pod["serviceAccountName"].as_str().unwrap_or("default"))
        .with("node_selector", some(nodes))
        .with("image_pull_secrets", if secrets.is_empty() { Value::Null } else { Value::List(secrets) })
        .with("tolerations", tolerations)
        .with("topology_spread_constraints", placement::read_spread(&pod["topologySpreadConstraints"], &selector()))
        .with("host_network", pod["hostNetwork"].as_bool());
    state.with("priority_class_name", pod["priorityClassName"].as_str().unwrap_or("system-cluster-critical"))
}

/// Reads the affinity; nothing where it is what karp writes.
fn affinity(pod: &Json, on_fargate: bool) -> Value {
    match &pod["affinity"] {
        Json::Null if on_fargate => Value::Null,
        Json::Null => Value::object::<&str, Value>([]),
        live if !on_fargate && *live == usual_affinity() => Value::Null,
        live => placement::read_affinity(live),
    }
}

fn toleration(live: &Json) -> Value {
    let text = |name: &str| Value::from(live[name].as_str());
    Value::object(["key", "operator", "value", "effect"].map(|name| (name, text(name))))
        .with("toleration_seconds", live["tolerationSeconds"].as_i64())
}

fn container_of(pod: &Json) -> &Json {
    let all = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|one| one["name"] == "controller").or(all.first()).unwrap_or(&Json::Null)
}

/// Gives the image of a Deployment's controller.
pub fn image_of(deployment: &Json) -> Option<&str> {
    container_of(&deployment["spec"]["template"]["spec"])["image"].as_str()
}

fn of_container(state: Value, container: &Json) -> Value {
    let args = container["args"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let args: Vec<Value> = args.skip_while(|arg| *arg == "controller").map(Value::from).collect();
    let usual = json!({ "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "1Gi" } });
    let amounts = |name: &str| some(texts(&container["resources"][name]));
    let resources = match container["resources"] == usual {
        true => Value::Null,
        false => Value::object(["requests", "limits"].map(|name| (name, amounts(name)))),
    };
    let state = state
        .with("image", container["image"].as_str())
        .with("image_pull_policy", container["imagePullPolicy"].as_str())
        .with("extra_args", if args.is_empty() { Value::Null } else { Value::List(args) })
        .with("resources", resources);
    of_environment(state, container)
}

/// Reads the environment: what has an attribute, what karp always writes, and the rest, which is the user's own.
fn of_environment(mut state: Value, container: &Json) -> Value {
    let all = container["env"].as_array().into_iter().flatten();
    let plain = all.filter_map(|entry| Some((entry["name"].as_str()?.to_owned(), entry["value"].as_str()?.to_owned())));
    let mut plain: BTreeMap<String, String> = plain.collect();
    for (attribute, variable) in VARIABLES {
        state.set(attribute, plain.remove(variable));
    }
    for (attribute, variable, usual) in PORTS {
        let port = plain.remove(variable).and_then(|text| text.parse::<i64>().ok());
        state.set(attribute, port.filter(|port| *port != usual));
    }
    let gates = plain.remove("FEATURE_GATES").map(|text| {
        let gate = |part: &str| part.split_once('=').map(|(name, on)| (name.to_owned(), Value::from(flag::parse(on))));
        Value::object(text.split(',').filter_map(gate).collect::<BTreeMap<_, _>>())
    });
    state.set("feature_gates", gates.unwrap_or_default());
    let told: Vec<(&str, Option<Value>)> = SETTINGS
        .iter()
        .map(|setting| (setting.name, plain.remove(setting.variable).map(|text| value(setting, &text))))
        .collect();
    let settings = Value::object(told.iter().map(|(name, value)| (*name, value.clone().unwrap_or_default())));
    state.set("settings", if told.iter().any(|(_, value)| value.is_some()) { settings } else { Value::Null });
    let always = always(&state);
    plain.retain(|name, value| always.get(name) != Some(value));
    state.with("extra_env", some(plain))
}

/// Gives the environment that the controller has whatever the user writes.
fn always(state: &Value) -> BTreeMap<String, String> {
    let namespace = state.get("namespace").as_str().map(str::to_owned);
    let plain = Settings { namespace, ..Settings::default() };
    let pod = pod_of(&plain);
    let all = container_of(&pod)["env"].as_array().cloned().unwrap_or_default();
    let text = |value: &Json| value.as_str().map(str::to_owned);
    all.iter().filter_map(|entry| Some((text(&entry["name"])?, text(&entry["value"])?))).collect()
}

fn value(setting: &Setting, text: &str) -> Value {
    match setting.form {
        Form::Flag => Value::from(flag::parse(text)),
        Form::Share | Form::Count(_) => serde_json::from_str::<Json>(text).map_or(Value::Null, Value::from),
        Form::Length | Form::Choice(_) | Form::Text(..) => Value::from(text),
    }
}

fn pod_of(settings: &Settings) -> Json {
    let objects = settings.objects();
    let deployment = objects.iter().find(|object| object.plural == "deployments");
    deployment.map(|object| object.json["spec"]["template"]["spec"].clone()).unwrap_or_default()
}

/// Tells what a Deployment has beside what the other attributes make: of its pods, and of their container.
fn more(state: &Value, deployment: &Json) -> (Option<Json>, Option<Json>) {
    let Ok(settings) = tfplugin::from_value::<Settings>(state) else { return (None, None) };
    let (usual, live) = (pod_of(&settings), &deployment["spec"]["template"]["spec"]);
    let container =
        owned::difference(&without(container_of(&usual), &OF_CONTAINER), &without(container_of(live), &OF_CONTAINER));
    let pod = owned::difference(&without(&usual, &["containers"]), &without(live, &["containers"]));
    (pod, container)
}

fn without(object: &Json, fields: &[&str]) -> Json {
    let mut rest: Map<String, Json> = object.as_object().cloned().unwrap_or_default();
    rest.retain(|name, _| !fields.contains(&name.as_str()));
    Json::Object(rest)
}

fn texts(map: &Json) -> BTreeMap<String, String> {
    let text = |(name, value): (&String, &Json)| Some((name.clone(), value.as_str()?.to_owned()));
    map.as_object().into_iter().flatten().filter_map(text).collect()
}

/// Gives a map; null for an empty one, as a configuration leaves it out.
fn some(map: BTreeMap<String, String>) -> Value {
    if map.is_empty() { Value::Null } else { Value::object(map) }
}

/// Reads the namespace out of an import id: `NAMESPACE/karpenter`, or the namespace alone.
pub fn namespace_of(id: &str) -> Option<&str> {
    let namespace = match id.split_once('/') {
        Some((namespace, NAME)) => namespace,
        Some(_) => return None,
        None => id,
    };
    (!namespace.is_empty()).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tfplugin::Resource;

    use super::*;
    use crate::manifests::controller::SERVICE_MONITORS;
    use crate::resources::controller::Controller;

    /// An object as the API server has it once the provider applied it; all of it in one field, and a default added.
    fn live(settings: &Settings, plural: &str) -> Json {
        let objects = settings.objects();
        let Some(object) = objects.iter().find(|object| object.plural == plural) else { return Json::Null };
        let mut live = object.json.clone();
        let fields = json!({
            "f:metadata": { "f:labels": {}, "f:annotations": {} },
            "f:spec": { "f:replicas": {}, "f:endpoints": {}, "f:template": {}, "f:sampleLimit": {}, "f:strategy": {},
                "f:revisionHistoryLimit": {}, "f:maxUnavailable": {}, "f:minAvailable": {} },
        });
        live["metadata"]["managedFields"] =
            json!([{ "manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields }]);
        live["metadata"]["uid"] = json!("1");
        live
    }

    fn round_trip(config: Json) {
        let schema = Controller::new(&Arc::default()).schema();
        let written = Value::from(config);
        // What a configuration leaves out has its default.
        let default = |name: &str| schema.attributes[name].default.clone().unwrap_or_default();
        let mut state = Value::object(schema.attributes.keys().map(|name| (name.clone(), default(name))));
        for (name, value) in written.as_map().expect("attributes") {
            state.set(name.clone(), value.clone());
        }
        let settings: Settings = tfplugin::from_value(&state).expect("settings");
        let live = Live {
            deployment: live(&settings, "deployments"),
            account: live(&settings, "serviceaccounts"),
            service: live(&settings, "services"),
            budget: live(&settings, "poddisruptionbudgets"),
            monitor: live(&settings, SERVICE_MONITORS),
        };
        let bare = Value::object([("namespace", state.get("namespace").clone())]);
        let found = recovered(&bare, &live);
        let again: Settings = tfplugin::from_value(&found).expect("settings");
        // Whether the namespace is to be made is nothing that an object tells.
        let told = |settings: Settings| {
            plain(&serde_json::to_value(Settings { create_namespace: None, ..settings }).expect("plain data"))
        };
        assert_eq!(told(again), told(settings));
    }

    /// Leaves out what is null, and reads JSON in texts.
    fn plain(json: &Json) -> Json {
        match json {
            Json::Object(map) => {
                let there = map.iter().filter(|(_, value)| !value.is_null());
                Json::Object(there.map(|(name, value)| (name.clone(), plain(value))).collect())
            }
            Json::Array(list) => list.iter().map(plain).collect(),
            Json::String(text) if text.starts_with('{') => serde_json::from_str(text).expect("JSON"),
            other => other.clone(),
        }
    }

    #[test]
    fn a_plain_controller_returns() {
        round_trip(json!({ "image": "karp:1", "cluster_name": "demo" }));
    }

    #[test]
    fn every_attribute_returns() {
        round_trip(json!({
            "image": "karp:1", "cluster_name": "demo", "cluster_endpoint": "https://a", "namespace": "karp", "service_account": "k",
            "controller_role_arn": "arn:aws:iam::1:role/c", "interruption_queue": "q", "image_pull_policy": "Always", "replicas": 1,
            "feature_gates": { "NodeOverlay": true, "SpotToSpotConsolidation": false }, "log_level": "debug",
            "resources": { "requests": { "cpu": "1" }, "limits": null }, "extra_env": { "A": "b" }, "extra_args": ["--x"],
            "on_fargate": false, "node_selector": { "a": "b" }, "priority_class_name": "p", "labels": { "team": "a" },
            "annotations": { "x": "y" }, "pod_annotations": { "p": "q" }, "service_account_annotations": { "s": "t" },
            "image_pull_secrets": ["s"], "tolerations": [{ "key": "k", "operator": null, "value": null, "effect": "NoExecute",
                "toleration_seconds": 5 }],
            "settings": { "batch_idle_duration": "2s", "isolated_vpc": true, "reserved_enis": 1, "vm_memory_overhead_percent": 0.05 },
            "more_pod_spec_json": "{\"dnsConfig\":{\"options\":[{\"name\":\"ndots\"}]},\"dnsPolicy\":\"None\"}",
            "more_container_json": "{\"envFrom\":[{\"secretRef\":{\"name\":\"s\"}}],\"securityContext\":{\"runAsUser\":1}}",
            "pod_labels": { "sidecar": "no" }, "service_annotations": { "v": "w" }, "revision_history_limit": 3,
            "pod_disruption_budget": { "max_unavailable": null, "min_available": "50%" },
            "update_strategy": { "max_unavailable": "0", "max_surge": "1" },
            "service_monitor": { "labels": { "release": "prometheus" }, "interval": "30s", "sample_limit": 5000,
                "relabelings": [rule("keep", &["a", "b"])], "metric_relabelings": [rule("drop", &["__name__"])],
                "more_endpoint_json": "{\"scrapeTimeout\":\"5s\"}" },
        }));
        round_trip(
            json!({ "image": "karp:1", "cluster_name": "demo", "labels": { "team": "a" }, "pod_labels": { "team": "b" },
            "pod_disruption_budget": { "max_unavailable": "2", "min_available": null },
            "update_strategy": { "max_unavailable": "100%", "max_surge": null } }),
        );
    }

    fn rule(action: &str, labels: &[&str]) -> Json {
        json!({ "action": action, "modulus": null, "regex": "x.*", "replacement": null, "separator": null, "source_labels": labels,
            "target_label": null })
    }

    #[test]
    fn where_it_runs_returns() {
        let node =
            json!({ "match_expressions": [{ "key": "a", "operator": "In", "values": ["b"] }], "match_fields": null });
        let affinity = json!({ "pod_affinity": null, "pod_anti_affinity": null, "node_affinity": {
            "required_during_scheduling_ignored_during_execution": { "node_selector_terms": [node] },
            "preferred_during_scheduling_ignored_during_execution": null } });
        let spread = json!([{ "max_skew": 1, "topology_key": "topology.kubernetes.io/zone", "when_unsatisfiable": "DoNotSchedule",
            "label_selector": null, "match_label_keys": null, "min_domains": 2, "node_affinity_policy": null, "node_taints_policy": null }]);
        for on_fargate in [true, false] {
            round_trip(
                json!({ "image": "karp:1", "cluster_name": "demo", "on_fargate": on_fargate, "affinity": affinity,
                "topology_spread_constraints": spread }),
            );
        }
        round_trip(json!({ "image": "karp:1", "cluster_name": "demo", "on_fargate": false, "host_network": true,
            "metrics_port": 9080, "health_probe_port": 9081 }));
        round_trip(
            json!({ "image": "karp:1", "cluster_name": "demo", "on_fargate": false, "host_network": true, "affinity": affinity,
            "more_pod_spec_json": "{\"dnsConfig\":{\"nameservers\":[\"10.0.0.2\"]},\"dnsPolicy\":\"None\"}" }),
        );
        round_trip(json!({ "image": "karp:1", "cluster_name": "demo", "on_fargate": false, "affinity": {} }));
    }

    #[test]
    fn of_the_chart_of_karpenter_what_means_the_same_is_taken() {
        let container = json!({ "name": "controller", "image": "karpenter:1.14", "imagePullPolicy": "IfNotPresent", "env": [
            { "name": "CLUSTER_NAME", "value": "demo" }, { "name": "BATCH_MAX_DURATION", "value": "10s" },
            { "name": "FEATURE_GATES", "value": "NodeRepair=False,StaticCapacity=T" }, { "name": "ISOLATED_VPC", "value": "1" }] });
        let deployment = json!({ "metadata": { "labels": { "helm.sh/chart": "karpenter-1.14.0" } }, "spec": { "replicas": 2, "template": {
            "spec": { "serviceAccountName": "karpenter", "dnsPolicy": "ClusterFirst", "containers": [container] } } } });
        let account = json!({ "metadata": { "annotations": { ROLE: "arn:aws:iam::1:role/c" } } });
        let bare = Value::object([("namespace", "kube-system")]);
        let found = recovered(
            &bare,
            &Live { deployment, account, service: Json::Null, budget: Json::Null, monitor: Json::Null },
        );
        let settings: Settings = tfplugin::from_value(&found).expect("settings");
        assert_eq!((settings.cluster_name.as_deref(), settings.replicas), (Some("demo"), Some(2)));
        assert_eq!(settings.controller_role_arn.as_deref(), Some("arn:aws:iam::1:role/c"));
        let gates = settings.feature_gates.expect("gates");
        assert_eq!((gates.get("NodeRepair"), gates.get("StaticCapacity")), (Some(&false), Some(&true)));
        let told = settings.settings.expect("settings");
        assert_eq!(told.get("isolated_vpc"), Some(&json!(true)));
        assert_eq!((settings.labels, settings.on_fargate), (None, Some(false)));
    }

    #[test]
    fn an_id_names_the_namespace() {
        assert_eq!(namespace_of("kube-system/karpenter"), Some("kube-system"));
        assert_eq!(namespace_of("kube-system"), Some("kube-system"));
        assert_eq!((namespace_of("a/b"), namespace_of("/karpenter"), namespace_of("")), (None, None, None));
    }
}
