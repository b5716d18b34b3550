//! A provider that has karp's node pool and does nothing with it: what a plan of many pools costs whatever a provider does. The figures
//! (`tests/figures.rs`) measure karp against it.
//!
//! The schema of the provider block and of the resource are those that `tofu providers schema -json` tells of karp; the file is named by
//! `NOOP_SCHEMA`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value as Json;
use tfplugin::{Attribute, Context, Diagnostics, Provider, Resource, Schema, Type, Value, async_trait};

/// The resource that is kept.
const RESOURCE: &str = "karp_node_pool";

/// What OpenTofu tells of one attribute.
#[derive(Deserialize, Clone)]
struct Told {
    r#type: Option<Json>,
    nested_type: Option<Nested>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    computed: bool,
    #[serde(default)]
    sensitive: bool,
}

#[derive(Deserialize, Clone)]
struct Nested {
    attributes: BTreeMap<String, Told>,
    nesting_mode: String,
}

impl Told {
    fn attribute(&self) -> Attribute {
        let shape = match (&self.nested_type, &self.r#type) {
            (Some(nested), _) => {
                let inner = nested.attributes.iter().map(|(name, told)| (name.clone(), told.attribute()));
                match nested.nesting_mode.as_str() {
                    "list" => Attribute::nested_list(inner),
                    "set" => Attribute::nested_set(inner),
                    "map" => Attribute::nested_map(inner),
                    _ => Attribute::nested_single(inner),
                }
            }
            (None, told) => Attribute::of(told.as_ref().map_or(Type::Dynamic, shape)),
        };
        let shape = if self.required { shape.required() } else { shape };
        let shape = if self.optional { shape.optional() } else { shape };
        let shape = if self.computed { shape.computed() } else { shape };
        let shape = if self.sensitive { shape.sensitive() } else { shape };
        shape.describe(self.description.clone())
    }
}

/// Reads a type as OpenTofu writes it: `"string"`, or `["map", "string"]`.
fn shape(told: &Json) -> Type {
    let inner = || Box::new(shape(&told[1]));
    match told.as_str().or(told[0].as_str()) {
        Some("string") => Type::String,
        Some("number") => Type::Number,
        Some("bool") => Type::Bool,
        Some("list") => Type::List(inner()),
        Some("set") => Type::Set(inner()),
        Some("map") => Type::Map(inner()),
        Some("object") => {
            Type::object(told[1].as_object().into_iter().flatten().map(|(name, told)| (name, shape(told))))
        }
        _ => Type::Dynamic,
    }
}

/// Makes a schema of the attributes that OpenTofu told.
fn schema(told: &BTreeMap<String, Told>) -> Schema {
    told.iter().fold(Schema::new(""), |schema, (name, told)| schema.attribute(name, told.attribute()))
}

struct NoOp {
    block: BTreeMap<String, Told>,
    resource: BTreeMap<String, Told>,
}

impl NoOp {
    /// Reads the schema of the file that the environment names.
    fn read() -> Result<Self, String> {
        let path = std::env::var("NOOP_SCHEMA").map_err(|_| "NOOP_SCHEMA is not set")?;
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let told: Json = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
        let karp = told["provider_schemas"].as_object().and_then(|all| all.values().next());
        let karp = karp.ok_or_else(|| format!("{path} tells of no provider"))?;
        let attributes = |schema: &Json| {
            serde_json::from_value(schema["block"]["attributes"].clone()).map_err(|error| format!("{path}: {error}"))
        };
        Ok(Self { block: attributes(&karp["provider"])?, resource: attributes(&karp["resource_schemas"][RESOURCE])? })
    }
}

impl Provider for NoOp {
    fn name(&self) -> &'static str {
        "karp"
    }

    fn version(&self) -> &'static str {
        "0.0.0"
    }

    fn schema(&self) -> Schema {
        schema(&self.block)
    }

    fn configure(&self, _config: Value) -> Diagnostics {
        Diagnostics::new()
    }

    fn resources(&self) -> Vec<Box<dyn Resource>> {
        vec![Box::new(Pool(self.resource.clone()))]
    }
}

struct Pool(BTreeMap<String, Told>);

#[async_trait]
impl Resource for Pool {
    fn type_name(&self) -> &'static str {
        RESOURCE
    }

    fn schema(&self) -> Schema {
        schema(&self.0)
    }

    async fn create(&self, _ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        Ok(decided(planned))
    }

    async fn read(&self, _ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        Ok(Some(state))
    }

    async fn update(&self, _ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        Ok(decided(planned))
    }

    async fn delete(&self, _ctx: &Context, _prior: Value) -> Result<(), Diagnostics> {
        Ok(())
    }
}

/// Decides what a plan left open: nothing.
fn decided(value: Value) -> Value {
    match value {
        Value::Unknown => Value::Null,
        Value::List(list) => Value::List(list.into_iter().map(decided).collect()),
        Value::Map(map) => Value::Map(map.into_iter().map(|(name, value)| (name, decided(value))).collect()),
        known => known,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match NoOp::read() {
        Ok(provider) => tfplugin::serve(provider).await,
        Err(message) => {
            eprintln!("noop: {message}");
            ExitCode::FAILURE
        }
    }
}
