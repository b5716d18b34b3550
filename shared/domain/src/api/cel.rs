//! The CEL rules of a definition, asked of an object without a server.
//!
//! kube-cel brings a validator of its own, and a test holds this one to its verdicts. It compiles the regular expressions of a rule at each
//! call and turns each part of an object into CEL's values, also where nothing asks for them: together that was most of what the provider
//! took for a plan of many pools. Here a regular expression is compiled once, and only what a rule reads is turned.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use kube_cel::KubeCelExt as _;
use kube_cel::cel::extractors::This;
use kube_cel::cel::functions::timestamp;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{self, Context, ExecutionError, Program, ResolveResult};
use regex::Regex;
use serde_json::Value;

use super::validate::{Path, Violation, ViolationKind};

/// The part of a schema at or below which there are rules, or what rules read in a way of its own.
pub(super) struct Rules {
    here: Vec<Rule>,
    /// Whether strings here are times to a rule.
    time: bool,
    fields: BTreeMap<String, Rules>,
    items: Option<Box<Rules>>,
    /// Those of a map's values.
    entries: Option<Box<Rules>>,
}

struct Rule {
    text: String,
    message: String,
    program: Program,
    /// Whether it compares with what was there before, and has nothing to say where nothing was.
    of_change: bool,
}

impl Rules {
    /// Compiles the rules of a structural schema of our own.
    pub(super) fn of(schema: &Value) -> Self {
        let below = |schema: Option<&Value>| schema.map(Self::of).filter(Self::any).map(Box::new);
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
        let fields = schema.get("properties").and_then(Value::as_object);
        Self {
            here: rules.into_iter().flatten().map(Rule::of).collect(),
            time: schema.get("format").and_then(Value::as_str) == Some("date-time"),
            fields: fields
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Self::of(schema)))
                .filter(|(_, rules)| rules.any())
                .collect(),
            items: below(schema.get("items")),
            entries: below(schema.get("additionalProperties")),
        }
    }

    fn any(&self) -> bool {
        self.time || !self.here.is_empty() || !self.fields.is_empty() || self.items.is_some() || self.entries.is_some()
    }

    /// Asks all rules of an object with its defaults, `old` being the one that it takes the place of.
    pub(super) fn ask(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut found = Vec::new();
        self.walk(object, old, &mut Path::root(), &mut found);
        found
    }

    fn walk(&self, value: &Value, old: Option<&Value>, path: &mut Path, found: &mut Vec<Violation>) {
        self.ask_here(value, old, path, found);
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let old = old.and_then(|old| old.get(name));
                    if let Some(rules) = self.fields.get(name) {
                        path.within(name, |path| rules.walk(value, old, path, found));
                    } else if let Some(rules) = &self.entries {
                        path.within(&format!("[{name}]"), |path| rules.walk(value, old, path, found));
                    }
                }
            }
            Value::Array(list) => {
                let Some(rules) = &self.items else { return };
                for (index, value) in list.iter().enumerate() {
                    let old = old.and_then(|old| old.get(index));
                    path.within(&format!("[{index}]"), |path| rules.walk(value, old, path, found));
                }
            }
            _ => {}
        }
    }

    fn ask_here(&self, value: &Value, old: Option<&Value>, path: &Path, found: &mut Vec<Violation>) {
        let asked = || self.here.iter().filter(|rule| old.is_some() || !rule.of_change);
        if asked().next().is_none() {
            return;
        }
        let mut context = CONTEXT.new_inner_scope();
        context.add_variable_from_value("self", in_cel(value, Some(self)));
        if let Some(old) = old {
            context.add_variable_from_value("oldSelf", in_cel(old, Some(self)));
        }
        for rule in asked() {
            let message = match rule.program.execute(&context) {
                Ok(cel::Value::Bool(true)) => continue,
                Ok(cel::Value::Bool(false)) => rule.message.clone(),
                Ok(_) => format!("rule gives neither true nor false (rule: {})", rule.text),
                Err(error) => format!("rule evaluation error: {error} (rule: {})", rule.text),
            };
            path.report(found, ViolationKind::Rule, message);
        }
    }
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let member = |name: &str| rule[name].as_str().expect("our own rules have a text and a message").to_owned();
        let text = member("rule");
        let program = Program::compile(&text).expect("our own rules are CEL");
        let of_change = program.references().has_variable("oldSelf");
        Self { message: member("message"), of_change, program, text }
    }
}

/// Turns JSON into what rules read. The API server also turns strings of other formats, and writes names of fields that CEL reserves in
/// another way; no rule of ours reads such a field, which a test holds.
fn in_cel(value: &Value, at: Option<&Rules>) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(truth) => cel::Value::Bool(*truth),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => cel::Value::Int(whole),
            (None, Some(large)) => cel::Value::UInt(large),
            (None, None) => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => {
            let text = Arc::new(text.clone());
            let time = at.filter(|at| at.time).and_then(|_| timestamp(Arc::clone(&text)).ok());
            time.unwrap_or(cel::Value::String(text))
        }
        Value::Array(list) => {
            let items = at.and_then(|at| at.items.as_deref());
            cel::Value::List(Arc::new(list.iter().map(|item| in_cel(item, items)).collect()))
        }
        Value::Object(members) => {
            let below = |name: &String| at.and_then(|at| at.fields.get(name).or(at.entries.as_deref()));
            let member =
                |(name, value): (&String, &Value)| (Key::String(Arc::new(name.clone())), in_cel(value, below(name)));
            cel::Value::Map(Map { map: Arc::new(members.iter().map(member).collect()) })
        }
    }
}

/// All functions that rules may call.
static CONTEXT: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default();
    context.register_all();
    // in the place of those that compile at each call
    context.add_function("matches", matches);
    context.add_function("find", find);
    context
});

#[expect(clippy::needless_pass_by_value, reason = "cel hands values over")]
fn matches(This(text): This<Arc<String>>, pattern: Arc<String>) -> Result<bool, ExecutionError> {
    with_pattern("matches", &pattern, |pattern| pattern.is_match(&text))
}

#[expect(clippy::needless_pass_by_value, reason = "cel hands values over")]
fn find(This(text): This<Arc<String>>, pattern: Arc<String>) -> ResolveResult {
    let found = |pattern: &Regex| pattern.find(&text).map(|found| found.as_str().to_owned()).unwrap_or_default();
    with_pattern("find", &pattern, found).map(|found| cel::Value::String(Arc::new(found)))
}

/// Answers by a regular expression that is compiled when it is first met. All of them are written out in rules, none is a user's, so they
/// are few.
fn with_pattern<R>(function: &str, pattern: &str, answer: impl FnOnce(&Regex) -> R) -> Result<R, ExecutionError> {
    static MET: LazyLock<RwLock<BTreeMap<String, Arc<Regex>>>> = LazyLock::new(RwLock::default);
    let met = MET.read().unwrap_or_else(PoisonError::into_inner).get(pattern).cloned();
    let compiled = match met {
        Some(compiled) => compiled,
        None => {
            let compiled =
                Arc::new(Regex::new(pattern).map_err(|error| ExecutionError::function_error(function, error))?);
            MET.write().unwrap_or_else(PoisonError::into_inner).insert(pattern.to_owned(), Arc::clone(&compiled));
            compiled
        }
    };
    Ok(answer(&compiled))
}

#[cfg(test)]
mod tests {
    use super::super::crds;
    use super::*;

    fn schemas() -> Vec<Value> {
        let schema =
            |crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
                let version = crd.spec.versions.into_iter().next().unwrap();
                serde_json::to_value(version.schema.unwrap().open_api_v3_schema.unwrap()).unwrap()
            };
        crds().into_iter().map(schema).collect()
    }

    /// Calls for each schema in a schema, wherever it is.
    fn each<'a>(schema: &'a Value, met: &mut dyn FnMut(&'a Value)) {
        met(schema);
        match schema {
            Value::Object(members) => members.values().for_each(|member| each(member, met)),
            Value::Array(list) => list.iter().for_each(|one| each(one, met)),
            _ => {}
        }
    }

    fn count(rules: &Rules) -> usize {
        let below = rules.fields.values().chain(rules.items.as_deref()).chain(rules.entries.as_deref());
        rules.here.len() + below.map(count).sum::<usize>()
    }

    /// Also one that stands where the walk does not look, such as in a branch of `anyOf`.
    #[test]
    fn every_rule_is_asked() {
        for schema in schemas() {
            let mut written = 0;
            each(&schema, &mut |schema| {
                written += schema.get("x-kubernetes-validations").and_then(Value::as_array).map_or(0, Vec::len);
            });
            assert!(written > 0);
            assert_eq!(count(&Rules::of(&schema)), written);
        }
    }

    /// What would need turning: see `in_cel`.
    #[test]
    fn rules_read_times_and_otherwise_nothing_that_needs_turning() {
        const RESERVED: &str = "true false null in as break const continue else for function if import let loop package namespace \
                                return var void while";
        let (mut read, mut times) = (0, 0);
        for schema in schemas() {
            each(&schema, &mut |ruled| {
                if ruled.get("x-kubernetes-validations").is_none() {
                    return;
                }
                each(ruled, &mut |schema| {
                    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
                    times += usize::from(format == "date-time");
                    assert!(!["duration", "byte"].contains(&format), "{schema}");
                    for name in
                        schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.keys())
                    {
                        let plain = name.chars().all(|char| char.is_ascii_alphanumeric());
                        assert!(plain && RESERVED.split(' ').all(|word| word != name), "{name}");
                        read += 1;
                    }
                });
            });
        }
        assert!(read > 100 && times > 0, "{read} fields, {times} times");
    }

    #[test]
    fn a_pattern_that_is_none_is_told() {
        assert_eq!(with_pattern("find", "^a", |pattern| pattern.is_match("ab")), Ok(true));
        let told = with_pattern("find", "(", |_| ()).unwrap_err().to_string();
        assert!(told.contains("find") && told.contains("unclosed group"), "{told}");
    }
}
