//! Policy documents as they are read from JSON.

use serde_json::Value;

use super::condition::Condition;
use super::evaluate::Principal;
use super::pattern::{matches_any_case, matches_arn};

/// Why a document cannot be judged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("policy statement {statement}: {what}")]
pub struct Unreadable {
    /// The statement's id, or its place.
    pub statement: String,
    /// What is wrong with it.
    pub what: String,
}

/// A policy document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its statements, in order.
    pub statements: Vec<Statement>,
}

/// What a statement does to the requests that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It lets them pass.
    Allow,
    /// It forbids them, whatever else lets them pass.
    Deny,
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its id, or its place in the document (`#3`).
    pub sid: String,
    /// What it does.
    pub effect: Effect,
    /// Who it is about, in policies of resources and in trusts.
    pub principals: Option<Vec<Principal>>,
    /// What is done.
    pub actions: Chosen,
    /// To what; trusts name nothing.
    pub resources: Option<Chosen>,
    /// In which circumstances: all of them.
    pub conditions: Vec<Condition>,
}

/// Patterns, or all but what they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// What one of these says.
    Only(Vec<String>),
    /// What none of these says.
    Except(Vec<String>),
}

impl Chosen {
    fn has(&self, alike: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Only(patterns) => patterns.iter().any(|pattern| alike(pattern)),
            Self::Except(patterns) => !patterns.iter().any(|pattern| alike(pattern)),
        }
    }

    /// Lists the patterns.
    pub fn patterns(&self) -> &[String] {
        match self {
            Self::Only(patterns) | Self::Except(patterns) => patterns,
        }
    }
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// When it is no policy, or holds what the evaluator does not know.
    pub fn read(document: &Value) -> Result<Self, Unreadable> {
        let statements = match &document["Statement"] {
            Value::Array(all) => all.iter().collect(),
            one @ Value::Object(_) => vec![one],
            _ => return Err(Unreadable { statement: "-".to_owned(), what: "there is none".to_owned() }),
        };
        let read = statements.into_iter().enumerate().map(|(place, statement)| Statement::read(place, statement));
        Ok(Self { statements: read.collect::<Result<_, _>>()? })
    }

    /// Returns the document without the statements of an id.
    #[must_use]
    pub fn without(&self, sid: &str) -> Self {
        Self { statements: self.statements.iter().filter(|one| one.sid != sid).cloned().collect() }
    }
}

impl Statement {
    fn read(place: usize, json: &Value) -> Result<Self, Unreadable> {
        let sid = json["Sid"].as_str().map_or_else(|| format!("#{place}"), str::to_owned);
        let wrong = |what: String| Unreadable { statement: sid.clone(), what };
        let effect = match json["Effect"].as_str() {
            Some("Allow") => Effect::Allow,
            Some("Deny") => Effect::Deny,
            other => return Err(wrong(format!("effect {other:?}"))),
        };
        if let Some(unknown) = json.as_object().into_iter().flatten().map(|(key, _)| key).find(|key| !known(key)) {
            return Err(wrong(format!("{unknown} is not known")));
        }
        let actions = chosen(json, "Action").map_err(wrong)?.ok_or_else(|| wrong("no action".to_owned()))?;
        let resources = chosen(json, "Resource").map_err(wrong)?;
        let mut conditions = Vec::new();
        for (operator, keys) in json["Condition"].as_object().into_iter().flatten() {
            for (key, values) in keys.as_object().into_iter().flatten() {
                let values = texts(values).map_err(wrong)?;
                let read = Condition::read(operator, key, values);
                conditions.push(read.ok_or_else(|| wrong(format!("operator {operator} is not known")))?);
            }
        }
        let principals = match &json["Principal"] {
            Value::Null => None,
            principal => Some(principals(principal).map_err(wrong)?),
        };
        Ok(Self { effect, principals, actions, resources, conditions, sid })
    }

    /// Tells whether the statement is about an action.
    #[must_use]
    pub fn names(&self, action: &str) -> bool {
        self.actions.has(|pattern| matches_any_case(pattern, action))
    }

    /// Tells whether the statement is about a resource.
    #[must_use]
    pub fn covers(&self, resource: &str) -> bool {
        self.resources.as_ref().is_none_or(|resources| resources.has(|pattern| matches_arn(pattern, resource)))
    }
}

fn known(key: &str) -> bool {
    const KEYS: [&str; 8] =
        ["Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition", "Principal"];
    KEYS.contains(&key)
}

fn chosen(json: &Value, key: &str) -> Result<Option<Chosen>, String> {
    let (only, except) = (&json[key], &json[format!("Not{key}")]);
    match (only.is_null(), except.is_null()) {
        (false, true) => Ok(Some(Chosen::Only(texts(only)?))),
        (true, false) => Ok(Some(Chosen::Except(texts(except)?))),
        (true, true) => Ok(None),
        (false, false) => Err(format!("both {key} and Not{key}")),
    }
}

fn texts(json: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) if text.contains("${") => Err(format!("the variable in {text} is not known")),
        Value::String(text) => Ok(text.clone()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{other} is no text")),
    };
    match json {
        Value::Array(all) => all.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

fn principals(json: &Value) -> Result<Vec<Principal>, String> {
    if json == "*" {
        return Ok(vec![Principal::Anybody]);
    }
    let kinds = json.as_object().ok_or_else(|| format!("principal {json}"))?;
    let mut all = Vec::new();
    for (kind, names) in kinds {
        for name in texts(names)? {
            all.push(match (kind.as_str(), name.as_str()) {
                ("AWS", "*") => Principal::Anybody,
                ("AWS", _) => Principal::Aws(name),
                ("Service", _) => Principal::Service(name),
                ("Federated", _) => Principal::Federated(name),
                _ => return Err(format!("principal of kind {kind}")),
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(statement: &Value) -> Result<Statement, Unreadable> {
        Document::read(&json!({ "Statement": statement })).map(|document| document.statements[0].clone())
    }

    #[test]
    fn single_texts_and_lists_are_alike() {
        let one = read(&json!({ "Effect": "Allow", "Action": "ec2:Run*", "Resource": "*" })).expect("a statement");
        let list = read(&json!({ "Effect": "Allow", "Action": ["ec2:Run*"], "Resource": ["*"] })).expect("a statement");
        assert_eq!(one, list);
        assert_eq!(one.sid, "#0");
        assert!(one.names("EC2:runInstances") && !one.names("ec2:CreateFleet"));
    }

    #[test]
    fn exceptions_turn_a_choice_around() {
        let all_but =
            json!({ "Effect": "Deny", "NotAction": ["iam:*", "sts:*"], "NotResource": "arn:aws:sqs:r:1:mine" });
        let statement = read(&all_but).expect("a statement");
        assert!(!statement.names("iam:PassRole") && statement.names("sqs:SendMessage"));
        assert!(!statement.covers("arn:aws:sqs:r:1:mine") && statement.covers("arn:aws:sqs:r:1:other"));
    }

    #[test]
    fn what_is_not_known_is_an_error_and_names_its_statement() {
        let base = json!({ "Sid": "S", "Effect": "Allow", "Action": "a:B", "Resource": "*" });
        let with = |key: &str, value: Value| {
            let mut statement = base.clone();
            statement[key] = value;
            read(&statement).expect_err(key).to_string()
        };
        assert_eq!(with("Effect", json!("Maybe")), r#"policy statement S: effect Some("Maybe")"#);
        assert!(with("NotPrincipal", json!("*")).contains("NotPrincipal is not known"));
        assert!(with("Resource", json!("arn:aws:s3:::b/${aws:username}")).contains("variable"));
        assert!(with("Condition", json!({ "IpAddress": { "aws:SourceIp": "10.0.0.0/8" } })).contains("IpAddress"));
        assert!(with("NotAction", json!("a:C")).contains("both Action and NotAction"));
        assert!(Document::read(&json!({})).is_err());
    }
}
