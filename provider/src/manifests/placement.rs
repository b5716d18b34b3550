//! Where the controller's pods run, as attributes under the names of the Kubernetes API: affinity and topology spread.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{Attribute, AttributePath, Type, Value};

use super::spec::{self, Attributes, Scope};

const REQUIRED: &str = "required_during_scheduling_ignored_during_execution";
const PREFERRED: &str = "preferred_during_scheduling_ignored_during_execution";

static AFFINITY: LazyLock<Attributes> = LazyLock::new(|| {
    named([
        ("node_affinity", node_affinity()),
        ("pod_affinity", pod_affinity("Pods that these want to run beside.")),
        ("pod_anti_affinity", pod_affinity("Pods that these want to keep away from.")),
    ])
});

static SPREAD: LazyLock<Attributes> = LazyLock::new(|| {
    let policy = |what: &str| {
        Attribute::string().optional().validate(validate::one_of(["Honor", "Ignore"])).describe(what.to_owned())
    };
    named([
        (
            "max_skew",
            Attribute::number()
                .required()
                .validate(validate::whole(1, 1000))
                .describe("By how many pods domains may differ."),
        ),
        ("topology_key", Attribute::string().required().describe("The label of nodes whose values are the domains.")),
        (
            "when_unsatisfiable",
            Attribute::string()
                .required()
                .validate(validate::one_of(["DoNotSchedule", "ScheduleAnyway"]))
                .describe("What becomes of a pod that fits in no domain: `DoNotSchedule` or `ScheduleAnyway`."),
        ),
        ("label_selector", selector("Which pods are counted; the controller's own when left out.")),
        ("match_label_keys", texts("Labels whose values must be the pod's own, too.")),
        (
            "min_domains",
            Attribute::number()
                .optional()
                .validate(validate::whole(1, 1000))
                .describe("How many domains there should be at least."),
        ),
        (
            "node_affinity_policy",
            policy("Whether domains are those of nodes that node affinity allows; `Honor` when left out."),
        ),
        (
            "node_taints_policy",
            policy("Whether domains are those of nodes whose taints are tolerated; `Ignore` when left out."),
        ),
    ])
});

fn named<const N: usize>(all: [(&str, Attribute); N]) -> Attributes {
    all.map(|(name, attribute)| (name.to_owned(), attribute)).into()
}

fn texts(what: &str) -> Attribute {
    Attribute::list(Type::String).optional().describe(what)
}

fn expressions(what: &str, operators: Attribute) -> Attribute {
    Attribute::nested_list([
        ("key", Attribute::string().required().describe("The key.")),
        ("operator", operators.describe("How the key's value relates to the values.")),
        ("values", texts("The values.")),
    ])
    .optional()
    .describe(what)
}

fn selector(what: &str) -> Attribute {
    let operators =
        Attribute::string().required().validate(validate::one_of(["In", "NotIn", "Exists", "DoesNotExist"]));
    Attribute::nested_single([
        ("match_labels", Attribute::map(Type::String).optional().describe("Labels that are so.")),
        ("match_expressions", expressions("What else holds of the labels.", operators)),
    ])
    .optional()
    .describe(what)
}

fn weight() -> Attribute {
    Attribute::number().required().validate(validate::whole(1, 100)).describe("How much it counts.")
}

fn node_term() -> [(&'static str, Attribute); 2] {
    let operators = || {
        let all = validate::one_of(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
        Attribute::string().required().validate(all)
    };
    [
        ("match_expressions", expressions("What holds of the node's labels.", operators())),
        ("match_fields", expressions("What holds of the node's fields.", operators())),
    ]
}

fn node_affinity() -> Attribute {
    let terms = Attribute::nested_list(node_term()).required().describe("Terms, one of which must hold.");
    let required = Attribute::nested_single([("node_selector_terms", terms)]);
    let preference = Attribute::nested_single(node_term()).required().describe("What is preferred.");
    let preferred = Attribute::nested_list([("weight", weight()), ("preference", preference)]);
    Attribute::nested_single([
        (REQUIRED, required.optional().describe("What must hold of a node.")),
        (PREFERRED, preferred.optional().describe("What is preferred of a node.")),
    ])
    .optional()
    .describe("Nodes that the pods may run on, or should.")
}

fn pod_term() -> [(&'static str, Attribute); 6] {
    [
        ("topology_key", Attribute::string().required().describe("The label of nodes that says what is one place.")),
        ("label_selector", selector("Which pods; none when left out.")),
        ("namespaces", texts("Namespaces of those pods; the controller's own when both are left out.")),
        ("namespace_selector", selector("Namespaces of those pods, by their labels; `{}` for all.")),
        ("match_label_keys", texts("Labels whose values must be the pod's own, too.")),
        ("mismatch_label_keys", texts("Labels whose values must not be the pod's own.")),
    ]
}

fn pod_affinity(what: &str) -> Attribute {
    let term = Attribute::nested_single(pod_term()).required().describe("What is preferred.");
    let preferred = Attribute::nested_list([("weight", weight()), ("pod_affinity_term", term)]);
    Attribute::nested_single([
        (REQUIRED, Attribute::nested_list(pod_term()).optional().describe("What must hold.")),
        (PREFERRED, preferred.optional().describe("What is preferred.")),
    ])
    .optional()
    .describe(what)
}

/// Declares the affinity of the pods.
pub fn affinity() -> Attribute {
    Attribute::nested_single(AFFINITY.clone()).optional().describe(
        "The pods' affinity, in place of what karp writes where `on_fargate` is false: nodes that it did not make itself, and replicas apart. \
         `{}` for none at all.",
    )
}

/// Declares how the pods are spread.
pub fn topology_spread() -> Attribute {
    Attribute::nested_list(SPREAD.clone())
        .optional()
        .describe("How replicas are spread over zones or other places, as far as `affinity` leaves room.")
}

/// Writes an affinity as the API has it.
pub fn affinity_fields(given: &Json) -> Json {
    written(&AFFINITY, given)
}

/// Writes constraints as the API has them; `own` selects the controller's pods.
pub fn spread_fields(given: &[Json], own: &BTreeMap<&str, &str>) -> Json {
    let each = |one: &Json| {
        let mut constraint = written(&SPREAD, one);
        if constraint["labelSelector"].is_null() {
            constraint["labelSelector"] = json!({ "matchLabels": own });
        }
        constraint
    };
    given.iter().map(each).collect()
}

fn written(attributes: &Attributes, given: &Json) -> Json {
    // What is unknown is no JSON and comes not this far.
    spec::fields(attributes, &Value::from(given.clone()), &AttributePath::root(), &mut Vec::new())
}

/// Reads an affinity of the API back.
pub fn read_affinity(live: &Json) -> Value {
    spec::attributes(&AFFINITY, &Value::Null, live, Scope::All)
}

/// Reads constraints of the API back.
pub fn read_spread(live: &Json, own: &BTreeMap<&str, &str>) -> Value {
    let own = json!({ "matchLabels": own });
    let each = |one: &Json| {
        let read = spec::attributes(&SPREAD, &Value::Null, one, Scope::All);
        if one["labelSelector"] == own { read.with("label_selector", Value::Null) } else { read }
    };
    let all: Vec<Value> = live.as_array().into_iter().flatten().map(each).collect();
    if all.is_empty() { Value::Null } else { Value::List(all) }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm, PodAffinityTerm, TopologySpreadConstraint};

    use super::*;

    fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(json: &Json) -> T {
        let typed: T = serde_json::from_value(json.clone()).expect("the API's object");
        assert_eq!(serde_json::to_value(&typed).expect("JSON"), *json, "a field that the API does not know");
        typed
    }

    #[test]
    fn every_field_of_the_api_is_a_typed_attribute() {
        let expression = json!([{ "key": "k", "operator": "In", "values": ["v"] }]);
        let node = json!({ "matchExpressions": expression, "matchFields": expression });
        let selector = json!({ "matchLabels": { "aLabel/x": "b" }, "matchExpressions": expression });
        let pod = json!({ "topologyKey": "t", "labelSelector": selector, "namespaces": ["n"], "namespaceSelector": selector,
            "matchLabelKeys": ["k"], "mismatchLabelKeys": ["k"] });
        let of_pods = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [pod],
            "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "podAffinityTerm": pod }] });
        let affinity = json!({
            "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [node] },
                "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": node }] },
            "podAffinity": of_pods, "podAntiAffinity": of_pods,
        });
        let spread = json!([{ "maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            "matchLabelKeys": ["k"], "minDomains": 2, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore" }]);
        // The compiler says when Kubernetes' own types have more fields than are named here.
        let Affinity { node_affinity: Some(_), pod_affinity: Some(_), pod_anti_affinity: Some(_) } = typed(&affinity)
        else {
            panic!("{affinity}")
        };
        let NodeSelectorTerm { match_expressions: Some(_), match_fields: Some(_) } = typed(&node) else {
            panic!("{node}")
        };
        let PodAffinityTerm {
            label_selector: Some(_),
            match_label_keys: Some(_),
            mismatch_label_keys: Some(_),
            namespace_selector: Some(_),
            namespaces: Some(_),
            topology_key: _,
        } = typed(&pod)
        else {
            panic!("{pod}")
        };
        let TopologySpreadConstraint {
            label_selector: Some(_),
            match_label_keys: Some(_),
            max_skew: 1,
            min_domains: Some(2),
            node_affinity_policy: Some(_),
            node_taints_policy: Some(_),
            topology_key: _,
            when_unsatisfiable: _,
        } = typed(&spread[0])
        else {
            panic!("{spread}")
        };

        let back = |value: &Value| tfplugin::from_value::<Json>(value).expect("JSON");
        assert_eq!(affinity_fields(&back(&read_affinity(&affinity))), affinity);
        let own = BTreeMap::from([("app", "a")]);
        let read = back(&read_spread(&spread, &own));
        assert_eq!(spread_fields(read.as_array().expect("a list"), &own), spread);
    }

    #[test]
    fn a_constraint_counts_the_controllers_own_pods() {
        let own = BTreeMap::from([("app", "a")]);
        let given = json!({ "max_skew": 1, "topology_key": "zone", "when_unsatisfiable": "ScheduleAnyway", "label_selector": null });
        let written = spread_fields(&[given], &own);
        assert_eq!(written[0]["labelSelector"], json!({ "matchLabels": { "app": "a" } }));
        let read = read_spread(&written, &own);
        assert_eq!(read.as_list()[0].get("label_selector"), &Value::Null);
        assert_eq!(read_spread(&json!([]), &own), Value::Null);
    }
}
