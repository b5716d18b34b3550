//! The attributes of `karp_controller`.

use karp_domain::api::words;
use karp_domain::gates::GATES;
use karp_domain::quantity::Quantity;
use karp_domain::requirement::hint;
use serde_json::{Map, Value as Json};
use tfplugin::schema::validate::{self, Fault, Validator};
use tfplugin::{Attribute, AttributePath, Diagnostics, Schema, Type, Value};

use super::custom_object::force_conflicts;
use super::node_pool_schema::same_amounts;
use crate::manifests::controller::{MANAGED_BY, METRICS_PORT, NAME, PROBE_PORT, selector};
use crate::manifests::controller_settings::{Form, SETTINGS};
use crate::manifests::{placement, upkeep};

/// Declares what the controller is and whom it serves.
pub fn identity(schema: Schema) -> Schema {
    schema
        .attribute(
            "id",
            Attribute::string().computed().use_state_for_unknown().describe("The namespace and the Deployment's name."),
        )
        .attribute(
            "cluster_endpoint",
            Attribute::string()
                .optional()
                .describe("The endpoint that nodes join; the controller asks EKS when left out."),
        )
        .attribute(
            "namespace",
            Attribute::string()
                .default(NAME)
                .requires_replace()
                .validate(validate::dns_label())
                .describe("The controller's namespace. On Fargate a profile must select it."),
        )
        .attribute(
            "create_namespace",
            Attribute::bool()
                .default(true)
                .describe("Make the namespace where it is not there yet; only one so made is deleted again."),
        )
        .attribute(
            "service_account",
            Attribute::string()
                .default(NAME)
                .requires_replace()
                .validate(validate::dns_subdomain())
                .describe("The service account that the controller runs as."),
        )
        .attribute(
            "controller_role_arn",
            Attribute::string().optional().validate(validate::role_arn()).describe(
                "The role that the service account is annotated with (IRSA). Leave it out with pod identity.",
            ),
        )
        .attribute(
            "interruption_queue",
            Attribute::string().optional().describe("The name of the queue of interruption messages."),
        )
        .attribute(
            "settings",
            Attribute::nested_single(
                SETTINGS.iter().map(|setting| (setting.name, form(setting.form).describe(setting.meaning))),
            )
            .optional()
            .describe("How the controller works; each setting is one of Karpenter's chart, or karp's own."),
        )
}

fn form(form: Form) -> Attribute {
    match form {
        Form::Flag => Attribute::bool().optional(),
        Form::Share => {
            Attribute::number().optional().validate(number("from 0 to less than 1", |n| (0.0..1.0).contains(&n)))
        }
        Form::Count(most) => {
            let least_to_most = move |n: f64| n.fract() == 0.0 && (0.0..=f64::from(most)).contains(&n);
            Attribute::number().optional().validate(number(format!("a whole number from 0 to {most}"), least_to_most))
        }
        Form::Length => Attribute::string().optional().validate(validate::duration()),
        Form::Choice(words) => Attribute::string().optional().validate(validate::one_of(words)),
        Form::Text(must, holds) => Attribute::string().optional().validate(validate::text(must, holds)),
    }
}

fn number(must: impl Into<String>, holds: impl Fn(f64) -> bool + Send + Sync + 'static) -> Validator {
    let must = must.into();
    Validator::new(move |value| match value.as_f64() {
        Some(number) if !holds(number) => Err(Fault::new(format!("must be {must}")).not(number)),
        _ => Ok(()),
    })
}

/// Declares what runs.
pub fn workload(schema: Schema) -> Schema {
    let amounts = |what: &str| Attribute::map(Type::String).optional().semantic_eq(same_amounts).describe(what);
    schema
        .attribute("image", Attribute::string().required().validate(validate::length(1, 1024)).describe("The controller's image."))
        .attribute(
            "image_pull_policy",
            Attribute::string()
                .optional()
                .validate(validate::one_of(["Always", "IfNotPresent", "Never"]))
                .describe("When the image is pulled."),
        )
        .attribute(
            "replicas",
            Attribute::number().default(2).validate(validate::whole(0, 10)).describe("Replicas; one leads, the others stand by."),
        )
        .attribute(
            "feature_gates",
            Attribute::map(Type::Bool).optional().describe(
                "Feature gates, by Karpenter's names. When left out, `ReservedCapacity` is on, and `CapacityBuffer`, `NodeOverlay`, \
                 `NodeRepair`, `SpotToSpotConsolidation` and `StaticCapacity` are off.",
            ),
        )
        .attribute(
            "log_level",
            Attribute::string()
                .default("info")
                .validate(validate::one_of(["debug", "info", "warn", "error"]))
                .describe("The level of the log."),
        )
        .attribute(
            "resources",
            Attribute::nested_single([
                ("requests", amounts("What is set aside for the controller.")),
                ("limits", amounts("The most that it may use.")),
            ])
            .optional()
            .describe("Resources of the container; 250m CPU and 256Mi memory are requested, and memory limited to 1Gi, when left out."),
        )
        .attribute("extra_env", map("Environment of the controller; it wins over what karp sets."))
        .attribute("extra_args", Attribute::list(Type::String).optional().describe("Arguments after `controller`."))
        .attribute(
            "on_fargate",
            Attribute::bool().default(true).describe(
                "Run where there need be no node yet: names are resolved by the host (`dnsPolicy: Default`), because cluster DNS needs a \
                 node. With `false` the controller keeps off nodes that it made itself, and replicas keep apart.",
            ),
        )
        .attribute("node_selector", map("Labels of nodes that the controller may run on."))
        .attribute(
            "priority_class_name",
            Attribute::string().default("system-cluster-critical").describe("The pods' priority class."),
        )
        .attribute("labels", map("More labels of all objects."))
}

/// Declares what else may be said of the controller's pods and of what is beside them.
pub fn surroundings(schema: Schema) -> Schema {
    let text = |what: &str| Attribute::string().optional().describe(what);
    let json =
        |what: &str| Attribute::string().optional().validate(json_object()).semantic_eq(same_json).describe(what);
    schema
        .attribute("annotations", map("Annotations of all objects."))
        .attribute("pod_annotations", map("Annotations of the pods."))
        .attribute("pod_labels", map("More labels of the pods alone."))
        .attribute("service_annotations", map("Annotations of the Service that metrics are read from."))
        .attribute("pod_disruption_budget", upkeep::disruption_budget())
        .attribute("update_strategy", upkeep::update_strategy())
        .attribute(
            "revision_history_limit",
            Attribute::number()
                .optional()
                .validate(number("a whole number from 0 to 100", |n| n.fract() == 0.0 && (0.0..=100.0).contains(&n)))
                .describe("How many earlier versions of the pods the Deployment can be rolled back to; 10 when left out."),
        )
        .attribute("service_account_annotations", map("Annotations of the service account."))
        .attribute(
            "image_pull_secrets",
            Attribute::set(Type::String).optional().describe("Names of Secrets in the namespace by which the image is pulled."),
        )
        .attribute(
            "tolerations",
            Attribute::nested_list([
                ("key", text("The taint's key; any when left out.")),
                (
                    "operator",
                    Attribute::string().optional().validate(validate::one_of(["Equal", "Exists"])).describe("`Equal` when left out."),
                ),
                ("value", text("The taint's value.")),
                (
                    "effect",
                    Attribute::string()
                        .optional()
                        .validate(validate::one_of(["NoSchedule", "PreferNoSchedule", "NoExecute"]))
                        .describe("The taint's effect; any when left out."),
                ),
                ("toleration_seconds", Attribute::number().optional().describe("For how long `NoExecute` is borne; for ever when left out.")),
            ])
            .optional()
            .describe("Taints that the pods tolerate; `CriticalAddonsOnly` alone when left out."),
        )
        .attribute("affinity", placement::affinity())
        .attribute("topology_spread_constraints", placement::topology_spread())
        .attribute(
            "host_network",
            Attribute::bool().optional().describe(
                "Run in the network of the node, with `on_fargate = false`: where pods have no network of their own before something else \
                 runs. `metrics_port` and `health_probe_port` of the node are the controller's then.",
            ),
        )
        .attribute("metrics_port", port("The port of `/metrics`, in the pods and of the Service", METRICS_PORT))
        .attribute("health_probe_port", port("The port of `/healthz` and `/readyz`", PROBE_PORT))
        .attribute(
            "more_pod_spec_json",
            json(
                "More of the pods' spec, as JSON under the names of the Kubernetes API: DNS, volumes and the like. \
                 It is merged over what karp writes: objects are merged, all else is put in its place.",
            ),
        )
        .attribute(
            "more_container_json",
            json("More of the controller's container, in the same way: `envFrom`, `volumeMounts`, `securityContext` and the like."),
        )
        .attribute(
            "service_monitor",
            Attribute::nested_single([
                ("labels", map("Labels by which a Prometheus chooses it.")),
                ("interval", Attribute::string().optional().validate(validate::duration()).describe("How often it scrapes; Prometheus's own interval when left out.")),
                ("relabelings", upkeep::relabelings("Rules by which labels of the target are changed before it is scraped.")),
                ("metric_relabelings", upkeep::relabelings("Rules by which metrics are changed or dropped before they are kept.")),
                (
                    "sample_limit",
                    Attribute::number()
                        .optional()
                        .validate(number("a whole number of 0 or more", |n| n.fract() == 0.0 && n >= 0.0))
                        .describe("How many samples a scrape may have; any number when left out."),
                ),
                (
                    "more_endpoint_json",
                    json("More of the endpoint, as JSON under the names of the Prometheus operator: `scrapeTimeout`, `honorLabels` and the like."),
                ),
            ])
            .optional()
            .describe("Make a ServiceMonitor for the Prometheus operator, whose CRDs must be there. `{}` will do."),
        )
}

fn map(what: &str) -> Attribute {
    Attribute::map(Type::String).optional().describe(what)
}

fn object(text: &str) -> Option<Map<String, Json>> {
    serde_json::from_str(text).ok()
}

/// Environment and volumes may have secrets in them, so that nothing of a document is told.
fn json_object() -> Validator {
    validate::document("must be a JSON object, as `jsonencode` gives it", |text| object(text).is_some())
}

fn port(what: &str, usual: i64) -> Attribute {
    Attribute::number()
        .optional()
        .validate(number("a port from 1 to 65535", |n| n.fract() == 0.0 && (1.0..=65535.0).contains(&n)))
        .describe(format!("{what}; {usual} when left out."))
}

fn same_json(prior: &Value, planned: &Value) -> bool {
    let read = |value: &Value| value.as_str().and_then(object);
    read(prior).is_some() && read(prior) == read(planned)
}

/// What has an attribute of its own: the JSON attribute, the field there, and the attribute.
const GIVEN: [(&str, &str, &str); 14] = [
    ("more_pod_spec_json", "affinity", "affinity"),
    ("more_pod_spec_json", "containers", "more_container_json"),
    ("more_pod_spec_json", "hostNetwork", "host_network"),
    ("more_pod_spec_json", "imagePullSecrets", "image_pull_secrets"),
    ("more_pod_spec_json", "nodeSelector", "node_selector"),
    ("more_pod_spec_json", "priorityClassName", "priority_class_name"),
    ("more_pod_spec_json", "serviceAccountName", "service_account"),
    ("more_pod_spec_json", "tolerations", "tolerations"),
    ("more_pod_spec_json", "topologySpreadConstraints", "topology_spread_constraints"),
    ("more_container_json", "args", "extra_args"),
    ("more_container_json", "env", "extra_env"),
    ("more_container_json", "image", "image"),
    ("more_container_json", "imagePullPolicy", "image_pull_policy"),
    ("more_container_json", "resources", "resources"),
];

/// Checks what attributes say together.
pub fn check(config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    for (json, field, attribute) in GIVEN {
        if config.get(json).as_str().and_then(object).is_some_and(|more| more.contains_key(field)) {
            let detail = format!("Take {field:?} out of the JSON; `{attribute}` is there for it.");
            found.error(json, format!("{field:?} cannot be given here"), detail);
        }
    }
    let own = selector();
    for attribute in ["labels", "pod_labels"] {
        for (name, _) in config.get(attribute).as_map().into_iter().flatten() {
            let why = match name.as_str() {
                name if own.contains_key(name) => "Deployment, Service and budget find the pods by this label",
                MANAGED_BY if attribute == "labels" => "by this label a destroy knows the namespace that karp made",
                _ => continue,
            };
            let path = AttributePath::root().attribute(attribute).key(name);
            let detail = format!("{path}: take it out; {why}.");
            found.error(path, "The label is karp's own", detail);
        }
    }
    if ["max_unavailable", "min_available"]
        .iter()
        .all(|name| config.get("pod_disruption_budget").get(name).as_str().is_some())
    {
        let detail = "Take one of the two out: a PodDisruptionBudget has either.";
        found.error("pod_disruption_budget", "min_available beside max_unavailable", detail);
    }
    let on_nodes = matches!(config.get("on_fargate"), Value::Unknown | Value::Bool(false));
    if config.get("host_network").as_bool() == Some(true) && !on_nodes {
        let detail = "Set `on_fargate = false` beside it, or leave `host_network` out.";
        found.error("host_network", "Fargate has no network of a node", detail);
    }
    let port = |name: &str, usual: i64| match config.get(name) {
        Value::Null => Some(usual),
        given => given.as_i64(),
    };
    let ports = [port("metrics_port", METRICS_PORT), port("health_probe_port", PROBE_PORT)];
    if ports[0].is_some() && ports[0] == ports[1] {
        let detail = "Give one of them another number: both serve at the same time, and the other is 8080 or 8081 where it is left out.";
        found.error("health_probe_port", "metrics_port and health_probe_port are the same", detail);
    }
    let settings = config.get("settings");
    let length = |name: &str| settings.get(name).as_str().and_then(validate::parse_duration);
    if let (Some(idle), Some(most)) = (length("batch_idle_duration"), length("batch_max_duration"))
        && idle > most
    {
        let detail =
            "The first is how long no further pod must come, the second for how long pods are gathered in all.";
        found.error("settings.batch_idle_duration", "batch_idle_duration is longer than batch_max_duration", detail);
    }
    check_gates(config, &mut found);
    check_amounts(config, &mut found);
    found
}

/// Warns of feature gates that the controller of this version passes over; another image may know more.
fn check_gates(config: &Value, found: &mut Diagnostics) {
    let known = || GATES.iter().map(|(name, _)| *name);
    let named = config.get("feature_gates").as_map().into_iter().flatten().map(|(name, _)| name);
    for name in named.filter(|name| known().all(|gate| gate != name.as_str())) {
        let path = AttributePath::root().attribute("feature_gates").key(name);
        let meant = hint::nearest(name, known()).map(|gate| format!("; did you mean {gate}?")).unwrap_or_default();
        let all = known().collect::<Vec<_>>().join(", ");
        let detail = format!("{path}: the controller of this version passes {name:?} over; it knows {all}{meant}");
        found.warning(path, "Unknown feature gate", detail);
    }
}

/// Refuses amounts that the API server would refuse, as the Deployment is made late in an apply.
fn check_amounts(config: &Value, found: &mut Diagnostics) {
    for part in ["requests", "limits"] {
        for (name, amount) in config.get("resources").get(part).as_map().into_iter().flatten() {
            let Some(amount) = amount.as_str() else { continue };
            let path = AttributePath::root().attribute("resources").attribute(part).key(name);
            let wrong = match words::quantity(amount) {
                Ok(amount) if amount < Quantity::ZERO => "an amount cannot be negative".to_owned(),
                Ok(_) => continue,
                Err(wrong) => wrong,
            };
            found.error(path.clone(), "The amount cannot be read", format!("{path}: {wrong}"));
        }
    }
}

/// Declares what the provider does beside.
pub fn operation(schema: Schema) -> Schema {
    schema
        .attribute("force_conflicts", force_conflicts())
        .attribute(
            "wait",
            Attribute::bool().default(true).describe("Wait until the Deployment is rolled out and one of its replicas leads, for at most `timeouts.create` or `timeouts.update`. What \
             is not in time is a warning, of the rollout in later plans, too: it is applied, and Kubernetes goes on with it. Where another \
             controller leads, such as a Karpenter in another namespace, the warning says who and where. Who runs Terraform needs `get` for \
             the Lease, and for those of other namespaces `list`."),
        )
        .attribute(
            "force",
            Attribute::bool().optional().describe("Destroy the controller even though nodes live that only it can end."),
        )
        .attribute(
            "manifest_digest",
            Attribute::string().computed().describe(
                "A digest of all objects. A difference means that an object was changed or removed by others, or that this version of \
                 the provider writes it differently.",
            ),
        )
        .attribute(
            "version",
            Attribute::string().computed().describe(
                "The version that is deployed: the image's tag, which the label `app.kubernetes.io/version` of the pods tells, too. Null for an \
                 image that is named by its digest alone.",
            ),
        )
        .attribute(
            "ready_replicas",
            Attribute::number()
                .computed()
                .use_state_for_unknown()
                .describe("How many replicas were ready at the last refresh; null before the first one."),
        )
}
