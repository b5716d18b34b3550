//! Statements of the user's own in a policy that karp writes, in the shape of the well-known data source `aws_iam_policy_document`.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::iam::bounds;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{Attribute, AttributePath, Diagnostic, Diagnostics, Type, Value};

use super::iam_role;

const ATTRIBUTE: &str = "extra_statements";
/// Anybody: the kind of principal, and the one of each kind.
const ANYBODY: &str = "*";
/// Who may be named: `aws_iam_policy_document`'s words, which are IAM's.
const PRINCIPALS: [&str; 5] = [ANYBODY, "AWS", "CanonicalUser", "Federated", "Service"];

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
        ("values", set("The values, of which one is to be met.")),
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
        (
            "conditions",
            condition
                .optional()
                .describe("When it holds, which is when all of them are met; always when left out. One for each operator and key."),
        ),
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
        (
            "identifiers",
            set(
                "Who: ARNs or account ids, or services such as `sns.amazonaws.com`; or `*` alone for anybody, whom `Allow` takes only with a \
                 condition that bounds them, such as `StringEquals` on `aws:SourceAccount` or `aws:PrincipalOrgID`.",
            ),
        ),
    ]);
    list([
        ("principals", principal.required().validate(validate::count(1, 100)).describe("Whom it is about.")),
        ("actions", set("The actions, such as `sqs:SendMessage`, with this queue.")),
    ])
}

/// Refuses what a policy would not say as it is written: statements that are called as another one is, conditions of which a policy keeps
/// only one, and principals that let anybody in. What is not known yet is passed over.
pub fn check(config: &Value, karps: BTreeSet<String>) -> Diagnostics {
    let (mut found, mut taken) = (Diagnostics::new(), karps);
    for (at, statement) in config.get(ATTRIBUTE).as_list().iter().enumerate() {
        let refused = [
            ("sid", "Two statements of one name", called_as_another(statement, &mut taken)),
            ("conditions", "Two conditions in one place", given_twice(statement)),
            ("principals", "Principals that do not say who", misnamed(statement).or_else(|| opened(statement))),
        ];
        for (name, summary, why) in refused {
            if let Some(why) = why {
                let path = AttributePath::root().attribute(ATTRIBUTE).index(at).attribute(name);
                found.push(Diagnostic::error(summary, format!("{path}: {why}")).at(path));
            }
        }
    }
    found
}

/// Refuses at apply what [`check`] could not know before.
///
/// # Errors
/// What [`check`] finds.
pub fn ensure(planned: &Value, karps: BTreeSet<String>) -> Result<(), Diagnostics> {
    let found = check(planned, karps);
    if found.has_errors() { Err(found) } else { Ok(()) }
}

/// AWS takes no policy with two statements of a name.
fn called_as_another(statement: &Value, taken: &mut BTreeSet<String>) -> Option<String> {
    let sid = statement.get("sid").as_str()?;
    let again = !taken.insert(sid.to_owned());
    again.then(|| format!("{sid:?} is a statement of karp's own, or was given before. Choose another name."))
}

/// A policy has one place for an operator and a key: of two conditions there it would keep one, and hold more often than both do.
fn given_twice(statement: &Value) -> Option<String> {
    let mut taken = BTreeSet::new();
    statement.get("conditions").as_list().iter().find_map(|condition| {
        let (test, variable) = (condition.get("test").as_str()?, condition.get("variable").as_str()?);
        let again = !taken.insert((test.to_ascii_lowercase(), variable.to_ascii_lowercase()));
        again.then(|| {
            format!(
                "{test} on {variable} is there twice, and a policy keeps one. Where it is enough to meet one of the values, write one condition \
                 with all `values`; what must be met together takes different operators or keys."
            )
        })
    })
}

fn principals(statement: &Value) -> impl Iterator<Item = (&str, &[Value])> {
    let all = statement.get("principals").as_list().iter();
    all.filter_map(|one| Some((one.get("type").as_str()?, one.get("identifiers").as_list())))
}

/// Finds principals of which a policy would make others than they name.
fn misnamed(statement: &Value) -> Option<String> {
    for (kind, who) in principals(statement) {
        let mut known = who.iter().filter_map(Value::as_str);
        match known.find(|one| *one != ANYBODY && (kind == ANYBODY || one.contains(ANYBODY))) {
            Some(one) if kind == ANYBODY => {
                return Some(format!(
                    "the type \"*\" is anybody, not {one:?} alone. Write what {one:?} is as its `type`, such as \"AWS\"."
                ));
            }
            Some(one) => {
                return Some(format!(
                    "{one:?} names nobody: AWS takes no pattern here. Name each, or \"*\" with a condition such as `ArnLike` on \
                     `aws:PrincipalArn`."
                ));
            }
            None => {}
        }
    }
    let named = principals(statement).map(|(_, who)| who.len().max(1)).sum::<usize>();
    (named > 1 && takes_anybody(statement)).then(|| {
        "\"*\" is anybody, so that whoever stands beside it means nothing. Take \"*\" out, or leave it alone."
            .to_owned()
    })
}

/// Says why a statement lets anybody in; nothing where its conditions bound who that is.
fn opened(statement: &Value) -> Option<String> {
    let conditions = statement.get("conditions");
    let allows = matches!(statement.get("effect"), Value::Null) || statement.get("effect").as_str() == Some("Allow");
    if !allows || !conditions.whole_known() || !takes_anybody(statement) {
        return None;
    }
    let bounded = conditions.as_list().iter().any(|condition| {
        let text = |name: &str| condition.get(name).as_str().unwrap_or_default();
        bounds(text("test"), text("variable"), condition.get("values").as_list().iter().filter_map(Value::as_str))
    });
    (!bounded).then(|| {
        "\"*\" lets anybody in, also without an account of AWS. Name who may, or bound it by a condition that all others fail: \
         `StringEquals` on `aws:SourceAccount`, `aws:PrincipalAccount`, `aws:PrincipalOrgID` or `aws:SourceVpce`, or `ArnLike` on \
         `aws:SourceArn` or `aws:PrincipalArn` with an account."
            .to_owned()
    })
}

fn takes_anybody(statement: &Value) -> bool {
    principals(statement).any(|(kind, who)| kind == ANYBODY || who.iter().any(|one| one.as_str() == Some(ANYBODY)))
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
    /// Makes it one on this resource, with principals as AWS answers them: it knows an account by its id and tells it by its ARN.
    pub fn on(&self, resource: &str) -> Self {
        let partition = resource.split(':').nth(1).unwrap_or("aws");
        let in_full = |kind: &str, who: &String| match kind {
            "AWS" if who.len() == 12 && who.bytes().all(|digit| digit.is_ascii_digit()) => {
                format!("arn:{partition}:iam::{who}:root")
            }
            _ => who.clone(),
        };
        let principals = self.principals.iter().map(|one| Principal {
            r#type: one.r#type.clone(),
            identifiers: one.identifiers.iter().map(|who| in_full(&one.r#type, who)).collect(),
        });
        Self { principals: principals.collect(), resources: BTreeSet::from([resource.to_owned()]), ..self.clone() }
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
        if let [one] = &self.principals[..]
            && one.r#type == ANYBODY
            && one.identifiers.iter().eq([ANYBODY])
        {
            return json!(ANYBODY);
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
                vec![Principal { r#type: ANYBODY.to_owned(), identifiers: texts(anybody).into_iter().collect() }]
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

    #[test]
    fn an_account_is_written_as_aws_answers_it() {
        let of = |kind: &str, who: &str| {
            let identifiers = BTreeSet::from([who.to_owned()]);
            let principals = vec![Principal { r#type: kind.to_owned(), identifiers }];
            let statement = Statement { principals, ..Statement::default() }.on("arn:aws-cn:sqs:cn-north-1:1:q");
            statement.to_json()["Principal"].clone()
        };
        let root = "arn:aws-cn:iam::111122223333:root";
        assert_eq!(of("AWS", "111122223333"), json!({ "AWS": [root] }));
        assert_eq!(of("AWS", root), json!({ "AWS": [root] }));
        assert_eq!(of("CanonicalUser", "111122223333"), json!({ "CanonicalUser": ["111122223333"] }));
        assert_eq!(of("*", "*"), json!("*"));
    }

    /// Where and why a statement is refused.
    fn refused(statement: &Json) -> Vec<(String, String)> {
        let found = check(&Value::from(json!({ ATTRIBUTE: [{ "sid": "First" }, statement] })), BTreeSet::new());
        found.into_iter().map(|one| (one.path.to_string(), one.detail)).collect()
    }

    fn queue(principals: &Json, more: &Json) -> Json {
        let mut statement = json!({ "actions": ["sqs:SendMessage"], "principals": principals });
        for (name, value) in more.as_object().into_iter().flatten() {
            statement[name] = value.clone();
        }
        statement
    }

    #[test]
    fn nobody_is_let_in_unnamed() {
        let arn = "arn:aws:iam::111122223333:root";
        let of = |kind: &str, who: &[&str]| json!({ "type": kind, "identifiers": who });
        let account = json!({ "test": "StringEquals", "variable": "aws:SourceAccount", "values": ["111122223333"] });
        let tls = json!({ "test": "Bool", "variable": "aws:SecureTransport", "values": ["true"] });
        let bounded = json!({ "conditions": [tls, account] });
        for (principals, more, words) in [
            // anybody, in each spelling
            (json!([of("*", &["*"])]), json!({}), "lets anybody in"),
            (json!([of("*", &["*"])]), json!({ "effect": "Allow", "conditions": [tls] }), "lets anybody in"),
            (json!([of("AWS", &["*"])]), json!({ "effect": "Allow" }), "lets anybody in"),
            (json!([of("Service", &["*"])]), json!({}), "lets anybody in"),
            // not what it says
            (json!([of("*", &[arn])]), bounded.clone(), "is anybody, not \"arn:"),
            (json!([of("AWS", &["arn:aws:iam::*:root"])]), bounded.clone(), "takes no pattern"),
            (json!([of("AWS", &["**"])]), json!({ "effect": "Deny" }), "takes no pattern"),
            (json!([of("AWS", &["*", arn])]), bounded.clone(), "stands beside it"),
            (json!([of("AWS", &["*", arn])]), json!({}), "stands beside it"),
            (json!([of("*", &["*"]), of("AWS", &[arn])]), bounded.clone(), "stands beside it"),
            (
                json!([of("AWS", &["*"]), of("Service", &["sns.amazonaws.com"])]),
                json!({ "effect": "Deny" }),
                "stands beside it",
            ),
        ] {
            let statement = queue(&principals, &more);
            let found = refused(&statement);
            let [(path, why)] = &found[..] else { panic!("{statement}: {found:?}") };
            assert!(
                path == "extra_statements[1].principals" && why.starts_with(path) && why.contains(words),
                "{statement}: {why}"
            );
        }
        for (principals, more) in [
            (json!([of("AWS", &[arn, "444455556666"]), of("Service", &["sns.amazonaws.com"])]), json!({})),
            (json!([of("*", &["*"])]), bounded.clone()),
            (json!([of("AWS", &["*"])]), bounded),
            (json!([of("*", &["*"])]), json!({ "effect": "Deny", "conditions": [tls] })),
        ] {
            assert_eq!(refused(&queue(&principals, &more)), [], "{more}");
        }
    }

    #[test]
    fn what_is_not_known_yet_is_not_refused_and_then_is() {
        let anybody = Value::object([("type", "AWS")]).with("identifiers", Value::from(vec!["*"]));
        let open = |conditions: Value, identifiers: Value| {
            let one = anybody.clone().with("identifiers", identifiers);
            let statement = Value::object([("principals", Value::List(vec![one]))]).with("conditions", conditions);
            ensure(&Value::object([(ATTRIBUTE, Value::List(vec![statement]))]), BTreeSet::new())
        };
        let star = || Value::from(vec!["*"]);
        assert!(open(Value::Unknown, star()).is_ok());
        let condition = Value::object([("test", Value::Unknown)]);
        assert!(open(Value::List(vec![condition]), star()).is_ok());
        assert!(open(Value::Null, Value::Unknown).is_ok());
        assert!(open(Value::Null, Value::List(vec![Value::Unknown])).is_ok());
        let found = open(Value::Null, star()).expect_err("anybody");
        assert!(found.to_string().contains("lets anybody in"), "{found}");
    }

    #[test]
    fn no_condition_is_lost_behind_another() {
        let of = |keys: [(&str, &str); 2]| {
            let conditions =
                keys.map(|(test, variable)| json!({ "test": test, "variable": variable, "values": [test] }));
            refused(&json!({ "actions": ["ec2:DescribeTags"], "resources": ["*"], "conditions": conditions }))
        };
        let account = "aws:SourceAccount";
        for twice in [
            [("StringEquals", account), ("StringEquals", account)],
            [("StringEquals", account), ("stringEquals", "aws:sourceaccount")],
        ] {
            let found = of(twice);
            let [(path, why)] = &found[..] else { panic!("{found:?}") };
            assert!(path == "extra_statements[1].conditions" && why.contains("is there twice"), "{why}");
        }
        assert_eq!(of([("StringEquals", account), ("StringLike", account)]), []);
        assert_eq!(of([("StringEquals", account), ("StringEquals", "aws:SourceArn")]), []);
    }

    #[test]
    fn a_policy_never_says_anybody_where_somebody_was_named() {
        let of = |kind: &str, who: &str| Principal {
            r#type: kind.to_owned(),
            identifiers: BTreeSet::from([who.to_owned()]),
        };
        for principals in [vec![of("*", "1")], vec![of("*", "*"), of("AWS", "1")]] {
            let statement = Statement { principals, ..Statement::default() };
            assert_ne!(statement.to_json()["Principal"], json!("*"));
        }
    }
}
