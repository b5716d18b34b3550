//! Statements of the user's own in a policy that karp writes, in the shape of the well-known data source `aws_iam_policy_document`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{Attribute, AttributePath, Diagnostic, Diagnostics, Type, Value};

use super::iam_role;

const ATTRIBUTE: &str = "extra_statements";
/// Who may be named: `aws_iam_policy_document`'s words, which are IAM's.
const PRINCIPALS: [&str; 5] = ["*", "AWS", "CanonicalUser", "Federated", "Service"];

/// A statement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statement {
    sid: Option<String>,
    effect: String,
    /// Whom it is about; empty in the policy of an identity, which is about that alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    principals: Vec<Principal>,
    actions: BTreeSet<String>,
    /// What it is about; empty in the policy of a resource until it is [`on`](Self::on) that.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    resources: BTreeSet<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Principal {
    r#type: String,
    identifiers: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Condition {
    test: String,
    variable: String,
    values: BTreeSet<String>,
}

fn list(who_and_what: impl IntoIterator<Item = (&'static str, Attribute)>) -> Attribute {
    let sid = validate::text("must be letters and digits", |sid| sid.chars().all(|c| c.is_ascii_alphanumeric()));
    let condition = Attribute::nested_set([
        ("test", Attribute::string().required().describe("The operator, such as `StringEquals`.")),
        ("variable", Attribute::string().required().describe("The key, such as `aws:RequestedRegion`.")),
        ("values", set("The values.")),
    ]);
    let of_all = [
        (
            "sid",
            Attribute::string()
                .optional()
                .validate(sid)
                .describe("What the statement is called; not as one of karp's own."),
        ),
        (
            "effect",
            Attribute::string()
                .default("Allow")
                .validate(validate::one_of(["Allow", "Deny"]))
                .describe("What it does."),
        ),
        ("conditions", condition.optional().describe("When it holds; always when left out.")),
    ];
    Attribute::nested_list(of_all.into_iter().chain(who_and_what))
        .optional()
        .describe("Statements of your own, which follow karp's.")
}

fn set(what: &str) -> Attribute {
    Attribute::set(Type::String).required().describe(what)
}

/// Declares statements on what an identity may do.
pub fn of_identity() -> Attribute {
    list([
        ("actions", set("The actions, such as `ec2:DescribeTags`.")),
        ("resources", set("The resources, by ARN; `*` for all.")),
    ])
}

/// Declares statements on who may do what with a queue.
pub fn of_queue() -> Attribute {
    let principal = Attribute::nested_set([
        (
            "type",
            Attribute::string()
                .required()
                .validate(validate::one_of(PRINCIPALS))
                .describe("The kind: `AWS` (accounts, roles and users), `Service`, `Federated`, `CanonicalUser`, or `*` for anybody."),
        ),
        ("identifiers", set("Who: ARNs or account ids, or services such as `sns.amazonaws.com`; `*` for all of the kind.")),
    ]);
    list([
        ("principals", principal.required().validate(validate::count(1, 100)).describe("Whom it is about.")),
        ("actions", set("The actions, such as `sqs:SendMessage`, with this queue.")),
    ])
}

/// Refuses statements that are called as another one is: AWS takes no policy with two of a name.
pub fn check(config: &Value, karps: BTreeSet<String>) -> Diagnostics {
    let (mut found, mut taken) = (Diagnostics::new(), karps);
    for (at, statement) in config.get(ATTRIBUTE).as_list().iter().enumerate() {
        let Some(sid) = statement.get("sid").as_str() else { continue };
        if !taken.insert(sid.to_owned()) {
            let path = AttributePath::root().attribute(ATTRIBUTE).index(at).attribute("sid");
            let detail =
                format!("{path}: {sid:?} is a statement of karp's own, or was given before. Choose another name.");
            found.push(Diagnostic::error("Two statements of one name", detail).at(path));
        }
    }
    found
}

/// What the statements of a policy are called.
pub fn sids(policy: &Json) -> BTreeSet<String> {
    statements(policy).filter_map(|statement| statement["Sid"].as_str().map(str::to_owned)).collect()
}

/// Reads the statements of a policy that are not karp's, as far as attributes can say them.
pub fn of_others(policy: &Json, karps: &BTreeSet<String>) -> Vec<Statement> {
    let others = statements(policy).filter(|one| one["Sid"].as_str().is_none_or(|sid| !karps.contains(sid)));
    others.filter_map(Statement::read).collect()
}

fn statements(policy: &Json) -> impl Iterator<Item = &Json> {
    policy["Statement"].as_array().into_iter().flatten()
}

/// Reads what is one text or a list of them.
pub fn texts(value: &Json) -> Vec<String> {
    let all = value.as_array().map_or_else(|| vec![value], |many| many.iter().collect());
    all.into_iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

impl Statement {
    /// Makes it one on this resource.
    pub fn on(&self, resource: &str) -> Self {
        Self { resources: BTreeSet::from([resource.to_owned()]), ..self.clone() }
    }

    /// Writes it as a policy has it.
    pub fn to_json(&self) -> Json {
        let mut statement = json!({ "Effect": self.effect, "Action": self.actions, "Resource": self.resources });
        if let Some(sid) = &self.sid {
            statement["Sid"] = json!(sid);
        }
        if !self.principals.is_empty() {
            statement["Principal"] = self.principal();
        }
        let mut conditions: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
        for one in self.conditions.iter().flatten() {
            conditions.entry(&one.test).or_default().insert(one.variable.clone(), json!(one.values));
        }
        if !conditions.is_empty() {
            statement["Condition"] = json!(conditions);
        }
        statement
    }

    fn principal(&self) -> Json {
        if self.principals.iter().any(|one| one.r#type == "*") {
            return json!("*");
        }
        let mut all: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
        for one in &self.principals {
            all.entry(&one.r#type).or_default().extend(&one.identifiers);
        }
        json!(all)
    }

    /// Reads a statement; nothing where it says more than the attributes can (`NotAction`, `NotResource`, `NotPrincipal`).
    fn read(statement: &Json) -> Option<Self> {
        const READ: [&str; 6] = ["Sid", "Effect", "Principal", "Action", "Resource", "Condition"];
        if statement.as_object()?.keys().any(|key| !READ.contains(&key.as_str())) {
            return None;
        }
        let set = |field: &str| texts(&statement[field]).into_iter().collect();
        let mut conditions = Vec::new();
        for (test, variables) in statement["Condition"].as_object().into_iter().flatten() {
            for (variable, values) in variables.as_object()? {
                let values = texts(values).into_iter().collect();
                conditions.push(Condition { test: test.clone(), variable: variable.clone(), values });
            }
        }
        let principals = match &statement["Principal"] {
            Json::Null => Vec::new(),
            Json::Object(kinds) => kinds
                .iter()
                .map(|(kind, who)| Principal { r#type: kind.clone(), identifiers: texts(who).into_iter().collect() })
                .collect(),
            anybody => {
                vec![Principal { r#type: "*".to_owned(), identifiers: texts(anybody).into_iter().collect() }]
            }
        };
        Some(Self {
            sid: statement["Sid"].as_str().map(str::to_owned),
            effect: statement["Effect"].as_str()?.to_owned(),
            principals,
            actions: set("Action"),
            resources: set("Resource"),
            conditions: (!conditions.is_empty()).then_some(conditions),
        })
    }

    /// Says whether it is on this resource and no other.
    pub fn is_on(&self, resource: &str) -> bool {
        self.resources.iter().eq([resource])
    }

    /// Leaves open what it is on, as the attribute of a resource's policy does.
    pub fn anywhere(self) -> Self {
        Self { resources: BTreeSet::new(), ..self }
    }

    /// Writes it as the attribute has it.
    pub fn into_value(self) -> Value {
        let condition = |one: Condition| {
            Value::object([("test", one.test), ("variable", one.variable)])
                .with("values", iam_role::text_set(&one.values))
        };
        let conditions = self.conditions.map(|all| Value::canonical_set(all.into_iter().map(condition)));
        let mut value = Value::object([("effect", self.effect)])
            .with("sid", self.sid)
            .with("actions", iam_role::text_set(&self.actions))
            .with("conditions", conditions.unwrap_or(Value::Null));
        if !self.resources.is_empty() {
            value.set("resources", iam_role::text_set(&self.resources));
        }
        let principal = |one: Principal| {
            Value::object([("type", one.r#type)]).with("identifiers", iam_role::text_set(&one.identifiers))
        };
        if !self.principals.is_empty() {
            value.set("principals", Value::canonical_set(self.principals.into_iter().map(principal)));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_attributes_cannot_say_is_left_out() {
        for beyond in ["NotAction", "NotResource", "NotPrincipal"] {
            let mut statement = json!({ "Effect": "Allow", "Action": "sqs:*", "Resource": "*" });
            statement[beyond] = json!("iam:*");
            assert_eq!(Statement::read(&statement), None, "{beyond}");
        }
    }

    #[test]
    fn whom_a_statement_is_about_returns() {
        let arn = "arn:aws:sqs:eu-west-1:1:q";
        let services = ["sns.amazonaws.com", "sqs.amazonaws.com"];
        for (principal, kinds) in [
            (json!("*"), 1),
            (json!({ "AWS": ["arn:aws:iam::1:root"] }), 1),
            (json!({ "AWS": ["1", "2"], "Service": services }), 2),
        ] {
            let statement = json!({ "Sid": "Own", "Effect": "Allow", "Principal": principal, "Action": ["sqs:SendMessage"], "Resource": [arn] });
            let read = Statement::read(&statement).expect("a statement");
            assert_eq!((read.principals.len(), read.to_json()), (kinds, statement.clone()));
            let open = read.anywhere();
            let value = open.clone().into_value();
            assert!(value.get("resources").is_null() && !value.get("principals").is_null(), "{value:?}");
            let again: Statement = tfplugin::from_value(&value).expect("a statement");
            assert_eq!((again.on(arn).to_json(), again), (statement, open));
        }
    }
}
