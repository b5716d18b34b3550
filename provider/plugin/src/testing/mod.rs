//! Drives a provider in-process as Terraform's core does, and holds it to core's rules: for tests of resources without a binary.
//!
//! ```text
//! let core = Core::new(provider);
//! let state = core.apply("karp_node_role", &Value::Null, &config).await.expect_state();
//! core.assert_settled("karp_node_role", &state, &config).await;
//! ```

mod calls;
mod contract;

use std::sync::{Arc, Mutex, PoisonError};

use tonic::Request;

use crate::engine::conform_object;
use crate::proto::terraform as tf;
use crate::proto::terraform::provider_server::Provider as _;
use crate::schema::Mode;
use crate::server::{Service, wire};
use crate::{AttributePath, Diagnostics, Provider, Schema, Value};

pub use calls::Open;

/// A stand-in for Terraform's core. Its methods panic where core would call the provider buggy.
pub struct Core {
    service: Arc<Service>,
    old: bool,
    private: Mutex<Vec<u8>>,
}

/// What a plan came to.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The planned state; null for a destroy.
    pub planned: Value,
    /// The attributes that force a replacement.
    pub requires_replace: Vec<AttributePath>,
    /// Errors and warnings.
    pub diagnostics: Diagnostics,
    private: Vec<u8>,
}

/// What an operation left behind.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The state to store; null when the resource does not exist.
    pub state: Value,
    /// The identity to store beside it; null where there is none.
    pub identity: Value,
    /// Errors and warnings.
    pub diagnostics: Diagnostics,
    /// What is to be stored beside it that no user sees.
    pub private: Vec<u8>,
}

impl Outcome {
    /// The state of an operation that must have succeeded.
    ///
    /// # Panics
    /// When there are errors.
    #[must_use]
    pub fn expect_state(self) -> Value {
        assert!(!self.diagnostics.has_errors(), "{}", self.diagnostics);
        self.state
    }
}

impl Core {
    /// Takes a provider in.
    pub fn new(provider: impl Provider) -> Self {
        Self { service: Arc::new(Service::new(provider)), old: false, private: Mutex::default() }
    }

    /// Behaves as a core from before write-only attributes.
    #[must_use]
    pub fn before_write_only(mut self) -> Self {
        self.old = true;
        self
    }

    /// Stores beside the states of what follows what an operation wanted to be kept there; nothing at first.
    pub fn keep(&self, private: Vec<u8>) {
        *self.private.lock().unwrap_or_else(PoisonError::into_inner) = private;
    }

    fn kept(&self) -> Vec<u8> {
        self.private.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The schema of a resource.
    ///
    /// # Panics
    /// When the provider has no such resource.
    #[must_use]
    pub fn schema(&self, type_name: &str) -> &Schema {
        self.service.resource_schema(type_name).unwrap_or_else(|| panic!("no resource {type_name}"))
    }

    /// Fills a configuration up: attributes that were not written are null.
    #[must_use]
    pub fn config(&self, type_name: &str, config: &Value) -> Value {
        complete(self.schema(type_name), config)
    }

    /// Validates and configures the provider.
    pub async fn configure(&self, config: &Value) -> Diagnostics {
        let schema = self.service.provider_schema();
        let config = Some(encode(schema, &complete(schema, config)));
        let request = tf::validate_provider_config::Request { config: config.clone() };
        let checked = answer(self.service.validate_provider_config(Request::new(request)).await);
        let mut found = wire::read_diagnostics(checked.diagnostics);
        let request = tf::configure_provider::Request { terraform_version: "1.12.6".into(), config };
        let configured = answer(self.service.configure_provider(Request::new(request)).await);
        found.extend(wire::read_diagnostics(configured.diagnostics));
        found
    }

    /// Validates a configuration.
    pub async fn validate(&self, type_name: &str, config: &Value) -> Diagnostics {
        let schema = self.schema(type_name);
        let config = complete(schema, config);
        let mut found = missing(schema, &config);
        let request = tf::validate_resource_config::Request {
            type_name: type_name.into(),
            config: Some(encode(schema, &config)),
            client_capabilities: Some(tf::ClientCapabilities {
                deferral_allowed: false,
                write_only_attributes_allowed: !self.old,
            }),
        };
        let checked = answer(self.service.validate_resource_config(Request::new(request)).await);
        found.extend(wire::read_diagnostics(checked.diagnostics));
        found
    }

    /// Plans a change; a null prior state is a create, a null configuration a destroy.
    pub async fn plan(&self, type_name: &str, prior: &Value, config: &Value) -> Plan {
        let schema = self.schema(type_name);
        let config = if config.is_null() { Value::Null } else { complete(schema, config) };
        let request = tf::plan_resource_change::Request {
            type_name: type_name.into(),
            prior_state: Some(encode(schema, prior)),
            proposed_new_state: Some(encode(schema, &config)),
            config: Some(encode(schema, &config)),
            prior_private: self.kept(),
            prior_identity: wire::identity(schema, prior).unwrap_or_default(),
        };
        let planned = answer(self.service.plan_resource_change(Request::new(request)).await);
        let plan = Plan {
            planned: decode(schema, planned.planned_state.as_ref()),
            requires_replace: planned.requires_replace.iter().map(wire::read_path).collect(),
            diagnostics: wire::read_diagnostics(planned.diagnostics),
            private: planned.planned_private,
        };
        if !plan.diagnostics.has_errors() {
            let wrong = contract::plan_violations(schema, prior, &config, &plan.planned);
            assert!(wrong.is_empty(), "{type_name}: core refuses this plan:\n{}", wrong.join("\n"));
        }
        plan
    }

    /// Validates, plans and applies, replacing where the plan says so.
    pub async fn apply(&self, type_name: &str, prior: &Value, config: &Value) -> Outcome {
        let found = if config.is_null() { Diagnostics::new() } else { self.validate(type_name, config).await };
        if found.has_errors() {
            return Outcome { state: prior.clone(), identity: Value::Null, diagnostics: found, private: self.kept() };
        }
        let plan = self.plan(type_name, prior, config).await;
        if plan.diagnostics.has_errors() || &plan.planned == prior {
            return Outcome {
                state: prior.clone(),
                identity: Value::Null,
                diagnostics: plan.diagnostics,
                private: self.kept(),
            };
        }
        if prior.is_null() || plan.requires_replace.is_empty() {
            return self.apply_plan(type_name, prior, config, plan).await;
        }
        let destroy = self.plan(type_name, prior, &Value::Null).await;
        let destroyed = self.apply_plan(type_name, prior, &Value::Null, destroy).await;
        if destroyed.diagnostics.has_errors() {
            return destroyed;
        }
        let create = self.plan(type_name, &Value::Null, config).await;
        self.apply_plan(type_name, &Value::Null, config, create).await
    }

    /// Destroys.
    pub async fn destroy(&self, type_name: &str, prior: &Value) -> Outcome {
        self.apply(type_name, prior, &Value::Null).await
    }

    async fn apply_plan(&self, type_name: &str, prior: &Value, config: &Value, plan: Plan) -> Outcome {
        let schema = self.schema(type_name);
        let config = if config.is_null() { Value::Null } else { complete(schema, config) };
        let request = tf::apply_resource_change::Request {
            type_name: type_name.into(),
            prior_state: Some(encode(schema, prior)),
            planned_state: Some(encode(schema, &plan.planned)),
            config: Some(encode(schema, &config)),
            planned_private: plan.private,
            planned_identity: wire::identity(schema, prior).unwrap_or_default(),
        };
        let applied = answer(self.service.apply_resource_change(Request::new(request)).await);
        let outcome = Outcome {
            state: decode(schema, applied.new_state.as_ref()),
            identity: identity(schema, applied.new_identity.as_ref()),
            diagnostics: wire::read_diagnostics(applied.diagnostics),
            private: applied.private,
        };
        if !outcome.diagnostics.has_errors() {
            let wrong = contract::apply_violations(schema, &plan.planned, &outcome.state);
            assert!(wrong.is_empty(), "{type_name}: core calls this result inconsistent:\n{}", wrong.join("\n"));
        }
        outcome
    }

    /// Refreshes a state.
    pub async fn read(&self, type_name: &str, state: &Value) -> Outcome {
        let current = wire::identity(self.schema(type_name), state).unwrap_or_default();
        self.read_as(type_name, state, current).await
    }

    async fn read_as(
        &self,
        type_name: &str,
        state: &Value,
        current_identity: Option<tf::ResourceIdentityData>,
    ) -> Outcome {
        let schema = self.schema(type_name);
        let request = tf::read_resource::Request {
            type_name: type_name.into(),
            current_state: Some(encode(schema, state)),
            private: self.kept(),
            current_identity,
        };
        let read = answer(self.service.read_resource(Request::new(request)).await);
        Outcome {
            state: decode(schema, read.new_state.as_ref()),
            identity: identity(schema, read.new_identity.as_ref()),
            diagnostics: wire::read_diagnostics(read.diagnostics),
            private: read.private,
        }
    }

    /// Imports by id and refreshes, as core does.
    pub async fn import(&self, type_name: &str, id: &str) -> Outcome {
        let request = tf::import_resource_state::Request { type_name: type_name.into(), id: id.into(), identity: None };
        self.import_with(type_name, request).await
    }

    /// Imports by identity and refreshes, as core does.
    ///
    /// # Panics
    /// When the resource has no identity, or the value does not have its shape.
    pub async fn import_by_identity(&self, type_name: &str, given: &Value) -> Outcome {
        let schema = self.schema(type_name);
        let shape = schema.identity.as_ref().unwrap_or_else(|| panic!("{type_name} has no identity"));
        let given = wire::identity_value(shape, given).unwrap_or_else(|errors| panic!("{errors}"));
        let request = tf::import_resource_state::Request {
            type_name: type_name.into(),
            id: String::new(),
            identity: Some(given),
        };
        self.import_with(type_name, request).await
    }

    async fn import_with(&self, type_name: &str, request: tf::import_resource_state::Request) -> Outcome {
        let schema = self.schema(type_name);
        let imported = answer(self.service.import_resource_state(Request::new(request)).await);
        let diagnostics = wire::read_diagnostics(imported.diagnostics);
        match imported.imported_resources.into_iter().next() {
            Some(first) if !diagnostics.has_errors() => {
                let state = decode(schema, first.state.as_ref());
                self.read_as(type_name, &state, first.identity).await
            }
            _ => Outcome { state: Value::Null, identity: Value::Null, diagnostics, private: Vec::new() },
        }
    }

    /// Upgrades a stored state, given as JSON.
    pub async fn upgrade(&self, type_name: &str, version: i64, state: &serde_json::Value) -> Outcome {
        let raw = tf::RawState { json: state.to_string().into_bytes(), ..Default::default() };
        let request =
            tf::upgrade_resource_state::Request { type_name: type_name.into(), version, raw_state: Some(raw) };
        let upgraded = answer(self.service.upgrade_resource_state(Request::new(request)).await);
        Outcome {
            state: decode(self.schema(type_name), upgraded.upgraded_state.as_ref()),
            identity: Value::Null,
            diagnostics: wire::read_diagnostics(upgraded.diagnostics),
            private: self.kept(),
        }
    }

    /// Asks the provider to stop, as on Ctrl-C.
    pub async fn stop(&self) {
        answer(self.service.stop_provider(Request::new(tf::stop_provider::Request {})).await);
    }

    /// Holds that a refresh changes nothing and that the next plan is empty.
    ///
    /// # Panics
    /// When it is not so, with both values.
    pub async fn assert_settled(&self, type_name: &str, state: &Value, config: &Value) {
        let refreshed = self.read(type_name, state).await.expect_state();
        let drift = contract::differences(state, &refreshed);
        assert!(drift.is_empty(), "{type_name}: a refresh changes the state:\n{}", drift.join("\n"));
        let plan = self.plan(type_name, &refreshed, config).await;
        assert!(!plan.diagnostics.has_errors(), "{}", plan.diagnostics);
        let changes = contract::differences(&refreshed, &plan.planned);
        assert!(changes.is_empty(), "{type_name}: the next plan is not empty:\n{}", changes.join("\n"));
    }
}

fn complete(schema: &Schema, config: &Value) -> Value {
    conform_object(schema, config.clone()).unwrap_or_else(|error| panic!("not a configuration of this schema: {error}"))
}

/// Core itself refuses a configuration that leaves a required attribute out.
fn missing(schema: &Schema, config: &Value) -> Diagnostics {
    let required = schema.attributes.iter().filter(|(_, attribute)| attribute.mode == Mode::Required);
    let mut found = Diagnostics::new();
    for (name, _) in required.filter(|(name, _)| config.get(name).is_null()) {
        found.error(name.as_str(), "Missing required argument", format!("The argument {name:?} is required."));
    }
    found
}

fn encode(schema: &Schema, value: &Value) -> tf::DynamicValue {
    wire::dynamic(value, &schema.value_type()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn decode(schema: &Schema, message: Option<&tf::DynamicValue>) -> Value {
    wire::value(message, &schema.value_type()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn identity(schema: &Schema, message: Option<&tf::ResourceIdentityData>) -> Value {
    let Some(identity) = &schema.identity else { return Value::Null };
    wire::read_identity(identity, message).unwrap_or_else(|errors| panic!("{errors}"))
}

fn answer<T>(answer: Result<tonic::Response<T>, tonic::Status>) -> T {
    answer.unwrap_or_else(|status| panic!("the service failed: {status}")).into_inner()
}
