//! The attributes of `karp_node_pool`, under the names of the NodePool API.

use karp_domain::api::{duration, labels};
use karp_domain::quantity::Quantity;
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{Attribute, Type, Value};

/// Tells whether two durations are equally long, however they are written.
pub fn same_duration(prior: &Value, planned: &Value) -> bool {
    let length = |value: &Value| value.as_str().and_then(duration);
    length(prior).is_some() && length(prior) == length(planned)
}

/// Tells whether two maps name the same amounts, however they are written.
pub fn same_amounts(prior: &Value, planned: &Value) -> bool {
    let (Some(prior), Some(planned)) = (prior.as_map(), planned.as_map()) else { return false };
    let amount = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok());
    prior.len() == planned.len()
        && prior.iter().all(|(name, prior)| {
            planned
                .get(name)
                .is_some_and(|planned| prior == planned || amount(prior).is_some() && amount(prior) == amount(planned))
        })
}

/// Declares a duration; the domain's rules check its form.
pub fn span(description: &str) -> Attribute {
    Attribute::string().optional().semantic_eq(same_duration).describe(description)
}

fn name_value() -> Validator {
    validate::length(1, 253)
}

/// Declares the reference to a node class.
pub fn node_class_ref() -> Attribute {
    Attribute::nested_single([
        ("name", Attribute::string().required().validate(name_value()).describe("The node class's name.")),
        (
            "group",
            Attribute::string()
                .default(labels::AWS_GROUP)
                .requires_replace()
                .describe("The API group of the node class."),
        ),
        (
            "kind",
            Attribute::string().default("EC2NodeClass").requires_replace().describe("The kind of the node class."),
        ),
    ])
}

fn requirement() -> Vec<(&'static str, Attribute)> {
    vec![
        ("key", Attribute::string().required().describe("The label.")),
        (
            "operator",
            Attribute::string()
                .required()
                .validate(validate::one_of(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]))
                .describe("How the label relates to the values."),
        ),
        (
            "values",
            Attribute::list(Type::String).optional().describe("The values; for Gt, Lt, Gte and Lte one whole number."),
        ),
    ]
}

/// Declares label requirements.
pub fn requirements() -> Attribute {
    let mut all = requirement();
    all.push((
        "min_values",
        Attribute::number()
            .optional()
            .describe("How many values must stay possible, so that a launch keeps room to choose."),
    ));
    Attribute::nested_list(all)
}

/// Declares label requirements of what only selects, and launches nothing.
pub fn selecting_requirements() -> Attribute {
    Attribute::nested_list(requirement())
}

fn taints(description: &str) -> Attribute {
    Attribute::nested_list([
        ("key", Attribute::string().required().describe("The key.")),
        ("value", Attribute::string().optional().describe("The value.")),
        (
            "effect",
            Attribute::string()
                .required()
                .validate(validate::one_of(["NoSchedule", "PreferNoSchedule", "NoExecute"]))
                .describe("What happens to pods that do not tolerate it."),
        ),
        (
            "time_added",
            Attribute::string().optional().describe("When it was added, as `2026-01-31T12:00:00Z`; seldom of use."),
        ),
    ])
    .optional()
    .describe(description)
}

/// Declares what a pool's nodes look like.
pub fn template() -> Attribute {
    Attribute::nested_single([
        (
            "labels",
            Attribute::map(Type::String).optional().describe("Labels of the nodes. A change makes nodes drift."),
        ),
        (
            "annotations",
            Attribute::map(Type::String).optional().describe("Annotations of the nodes. A change makes nodes drift."),
        ),
        ("taints", taints("Taints of the nodes. A change makes nodes drift.")),
        (
            "startup_taints",
            taints("Taints that something else takes away once the node is ready; pods need not tolerate them."),
        ),
        (
            "requirements",
            requirements()
                .required()
                .describe("What the nodes' labels must be; together they say which instances may be launched."),
        ),
        ("node_class_ref", node_class_ref().required().describe("The node class that says how instances are made.")),
        ("expire_after", span("How long a node may live; `Never` for ever. The API's default is `720h`.")),
        ("termination_grace_period", span("How long a drain may take before pods are ended by force.")),
    ])
}

/// Declares when and how nodes are disrupted.
pub fn disruption() -> Attribute {
    let budgets = Attribute::nested_list([
        ("nodes", Attribute::string().required().describe("A number of nodes, or a percentage of the pool's.")),
        (
            "reasons",
            Attribute::set(Type::String)
                .optional()
                .validate(validate::each(validate::one_of(["Underutilized", "Empty", "Drifted", "Unhealthy"])))
                .describe("The reasons that the budget holds for; all when left out."),
        ),
        (
            "schedule",
            Attribute::string().optional().describe("When the budget begins to hold: a cron expression in UTC."),
        ),
        ("duration", span("How long it holds from each start.")),
    ]);
    Attribute::nested_single([
        (
            "consolidation_policy",
            Attribute::string()
                .optional()
                .validate(validate::one_of(["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]))
                .describe("Which nodes may be consolidated. The API's default is `WhenEmptyOrUnderutilized`."),
        ),
        (
            "consolidate_after",
            span(
                "How long a node must be without pod changes first; `Never` turns consolidation off. The API's default is `0s`.",
            ),
        ),
        ("budgets", budgets.optional().describe("How many nodes may be disrupted at once. The API's default is 10 %.")),
    ])
}
