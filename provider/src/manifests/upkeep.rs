//! How the controller's pods are replaced, kept and watched: the parts of Karpenter's chart beside the pods themselves.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{Attribute, Type, Value};

/// How many of the controller's pods may be evicted at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisruptionBudget {
    pub max_unavailable: Option<String>,
    pub min_available: Option<String>,
}

/// How a Deployment goes from one version of its pods to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateStrategy {
    pub max_unavailable: Option<String>,
    pub max_surge: Option<String>,
}

/// How Prometheus finds the controller, and what it keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceMonitor {
    pub labels: Option<std::collections::BTreeMap<String, String>>,
    pub interval: Option<String>,
    pub relabelings: Option<Vec<Relabeling>>,
    pub metric_relabelings: Option<Vec<Relabeling>>,
    pub sample_limit: Option<i64>,
    pub more_endpoint_json: Option<String>,
}

/// A rule by which Prometheus changes labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct Relabeling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modulus: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_labels: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_label: Option<String>,
}

/// How many ReplicaSets of earlier versions are kept when nobody says.
pub const HISTORY: i64 = 10;
/// What Prometheus does by a rule; the operator takes them in lower case, too.
const ACTIONS: [&str; 11] = [
    "replace",
    "keep",
    "drop",
    "hashmod",
    "labelmap",
    "labeldrop",
    "labelkeep",
    "lowercase",
    "uppercase",
    "keepequal",
    "dropequal",
];

impl DisruptionBudget {
    /// Gives the fields of a PodDisruptionBudget's spec beside its selector; one pod may go when neither is given.
    pub fn fields(budget: Option<&Self>) -> Map<String, Json> {
        let given = budget.map_or([None, None], |one| [one.max_unavailable.as_deref(), one.min_available.as_deref()]);
        let [most, least] = given.map(|amount| amount.map(int_or_share));
        let usual = (most.is_none() && least.is_none()).then(|| json!(1));
        let fields = [("maxUnavailable", most.or(usual)), ("minAvailable", least)];
        fields.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?))).collect()
    }

    /// Reads them; nothing where they are what karp writes unasked.
    pub fn read(spec: &Json) -> Value {
        let fields = [("max_unavailable", "maxUnavailable"), ("min_available", "minAvailable")];
        let is_usual = spec["maxUnavailable"] == 1 && spec["minAvailable"].is_null();
        if is_usual || fields.iter().all(|(_, name)| spec[name].is_null()) {
            return Value::Null;
        }
        Value::object(fields.map(|(attribute, name)| (attribute, Value::from(amount(&spec[name])))))
    }
}

impl UpdateStrategy {
    /// Gives a Deployment's strategy; one pod may be missing meanwhile when nobody says how many.
    pub fn fields(strategy: Option<&Self>) -> Json {
        let default = Self::default();
        let given = strategy.unwrap_or(&default);
        let most = given.max_unavailable.as_deref().map_or(json!(1), int_or_share);
        let mut rolling = json!({ "maxUnavailable": most });
        if let Some(surge) = given.max_surge.as_deref() {
            rolling["maxSurge"] = int_or_share(surge);
        }
        json!({ "type": "RollingUpdate", "rollingUpdate": rolling })
    }

    /// Reads it; nothing where it is what karp writes unasked.
    pub fn read(live: &Json) -> Value {
        if live.is_null() || *live == Self::fields(None) {
            return Value::Null;
        }
        let rolling = &live["rollingUpdate"];
        Value::object([
            ("max_unavailable", Value::from(amount(&rolling["maxUnavailable"]))),
            ("max_surge", Value::from(amount(&rolling["maxSurge"]))),
        ])
    }
}

impl ServiceMonitor {
    /// Gives the endpoint, with what the user adds to it.
    pub fn endpoint(&self) -> Json {
        let mut endpoint = json!({ "port": "http-metrics", "path": "/metrics" });
        if let Some(interval) = &self.interval {
            endpoint["interval"] = json!(interval);
        }
        let rules = [("relabelings", &self.relabelings), ("metricRelabelings", &self.metric_relabelings)];
        for (name, rules) in rules {
            if let Some(rules) = rules.as_ref().filter(|rules| !rules.is_empty()) {
                endpoint[name] = json!(rules);
            }
        }
        super::controller::more(&mut endpoint, self.more_endpoint_json.as_deref());
        endpoint
    }

    /// Reads all but the labels of what the provider applied.
    pub fn read(spec: &Json) -> [(&'static str, Value); 5] {
        let endpoint = &spec["endpoints"][0];
        let rules = |name: &str| match endpoint[name].as_array() {
            Some(rules) => Value::List(rules.iter().map(rule).collect()),
            None => Value::Null,
        };
        let known = ["port", "path", "interval", "relabelings", "metricRelabelings"];
        let mut more = endpoint.as_object().cloned().unwrap_or_default();
        more.retain(|name, _| !known.contains(&name.as_str()));
        let more = (!more.is_empty()).then(|| Json::Object(more).to_string());
        [
            ("interval", Value::from(endpoint["interval"].as_str())),
            ("relabelings", rules("relabelings")),
            ("metric_relabelings", rules("metricRelabelings")),
            ("sample_limit", Value::from(spec["sampleLimit"].as_i64())),
            ("more_endpoint_json", Value::from(more)),
        ]
    }
}

fn rule(live: &Json) -> Value {
    let text = |name: &str| Value::from(live[name].as_str());
    let labels =
        live["sourceLabels"].as_array().map(|all| all.iter().filter_map(Json::as_str).map(Value::from).collect());
    Value::object([
        ("action", text("action")),
        ("modulus", Value::from(live["modulus"].as_i64())),
        ("regex", text("regex")),
        ("replacement", text("replacement")),
        ("separator", text("separator")),
        ("source_labels", labels.map_or(Value::Null, Value::List)),
        ("target_label", text("targetLabel")),
    ])
}

/// Writes a number or a share as the API does; validation has seen that it is one of them.
fn int_or_share(text: &str) -> Json {
    text.parse::<u32>().map_or_else(|_| json!(text), |number| json!(number))
}

fn amount(live: &Json) -> Option<String> {
    live.as_i64().map(|number| number.to_string()).or_else(|| live.as_str().map(str::to_owned))
}

fn is_amount(text: &str) -> bool {
    let digits = text.strip_suffix('%').unwrap_or(text);
    digits.len() <= 4 && digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u32>().is_ok()
}

fn pods(what: &str) -> Attribute {
    let must = "must be a number of pods or a share of them, such as 1 or 25%";
    Attribute::string().optional().validate(validate::text(must, is_amount)).describe(what.to_owned())
}

/// Declares the budget of the controller's pods.
pub fn disruption_budget() -> Attribute {
    Attribute::nested_single([
        ("max_unavailable", pods("How many may be missing.")),
        ("min_available", pods("How many must be there, in place of `max_unavailable`.")),
    ])
    .optional()
    .describe("The PodDisruptionBudget of the controller's pods; one may be missing when left out.")
}

/// Declares the Deployment's strategy.
pub fn update_strategy() -> Attribute {
    Attribute::nested_single([
        ("max_unavailable", pods("How many pods may be missing meanwhile; one when left out.")),
        ("max_surge", pods("How many pods there may be beside; Kubernetes's own 25% when left out.")),
    ])
    .optional()
    .describe(
        "How the pods of a new version take the place of the old ones. With `max_unavailable = \"100%\"` and `max_surge = \"0\"` the old ones \
         go first, as by the strategy `Recreate`.",
    )
}

/// Declares the rules of a ServiceMonitor.
pub fn relabelings(what: &str) -> Attribute {
    let text = |what: &str| Attribute::string().optional().describe(what.to_owned());
    Attribute::nested_list([
        (
            "action",
            Attribute::string().optional().validate(action()).describe("What is done; `replace` when left out."),
        ),
        (
            "modulus",
            Attribute::number().optional().describe("What the hash of the labels is divided by, for `hashmod`."),
        ),
        ("regex", text("What the labels must match, whole.")),
        ("replacement", text("What is written; `$1` when left out.")),
        ("separator", text("What stands between several labels; `;` when left out.")),
        ("source_labels", Attribute::list(Type::String).optional().describe("The labels that are read.")),
        ("target_label", text("The label that is written.")),
    ])
    .optional()
    .describe(what.to_owned())
}

fn action() -> Validator {
    let must = format!("must be one of {}", ACTIONS.join(", "));
    validate::text(must, |text: &str| ACTIONS.contains(&text.to_ascii_lowercase().as_str()))
}
