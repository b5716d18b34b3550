//! Core's calls beyond the life of a resource: moves, identities of older versions, functions, ephemeral resources, data sources.

use tonic::Request;

use super::{Core, Outcome, answer, complete, decode, encode, identity};
use crate::proto::terraform as tf;
use crate::proto::terraform::provider_server::Provider as _;
use crate::server::wire;
use crate::{Diagnostics, FunctionError, Moved, Schema, Value};

/// An ephemeral value that a test holds open.
#[derive(Debug, Clone)]
pub struct Open {
    /// The value.
    pub result: Value,
    /// When it wants to be renewed, in seconds since 1970.
    pub renew_at: Option<i64>,
    type_name: String,
    private: Option<Vec<u8>>,
}

impl Core {
    /// Hands a resource of another type over, as a `moved` block does.
    pub async fn take_over(&self, type_name: &str, source: &Moved) -> Outcome {
        let raw = tf::RawState { json: source.state.to_string().into_bytes(), ..Default::default() };
        let request = tf::move_resource_state::Request {
            source_provider_address: source.provider_address.clone(),
            source_type_name: source.type_name.clone(),
            source_schema_version: source.schema_version,
            source_state: Some(raw),
            target_type_name: type_name.into(),
            ..Default::default()
        };
        let moved = answer(self.service.move_resource_state(Request::new(request)).await);
        let schema = self.schema(type_name);
        Outcome {
            state: decode(schema, moved.target_state.as_ref()),
            identity: identity(schema, moved.target_identity.as_ref()),
            diagnostics: wire::read_diagnostics(moved.diagnostics),
            private: moved.target_private,
        }
    }

    /// Upgrades a stored identity, given as JSON; with null, that of a state that has none.
    pub async fn upgrade_identity(&self, type_name: &str, version: i64, stored: &serde_json::Value) -> Outcome {
        let raw = || tf::RawState { json: stored.to_string().into_bytes(), ..Default::default() };
        let raw_identity = (!stored.is_null()).then(raw);
        let request = tf::upgrade_resource_identity::Request { type_name: type_name.into(), version, raw_identity };
        let upgraded = answer(self.service.upgrade_resource_identity(Request::new(request)).await);
        Outcome {
            state: Value::Null,
            identity: identity(self.schema(type_name), upgraded.upgraded_identity.as_ref()),
            diagnostics: wire::read_diagnostics(upgraded.diagnostics),
            private: self.kept(),
        }
    }

    /// Calls a function.
    ///
    /// # Errors
    /// What the function says is wrong.
    ///
    /// # Panics
    /// When an argument does not have the parameter's type, which core would find first, or the provider has no such function.
    pub async fn call(&self, function: &str, arguments: &[Value]) -> Result<Value, FunctionError> {
        let kind = self.service.functions().get(function).unwrap_or_else(|| panic!("no function {function}"));
        let signature = &kind.signature;
        let rest = signature.variadic.iter().cycle();
        let parameters = signature.parameters.iter().chain(rest);
        let encoded = parameters.zip(arguments).map(|(parameter, argument)| {
            wire::dynamic(argument, &parameter.kind).unwrap_or_else(|errors| panic!("{}: {errors}", parameter.name))
        });
        let mut encoded: Vec<tf::DynamicValue> = encoded.collect();
        // arguments beyond the parameters are sent as they are: the provider refuses them
        encoded.resize_with(arguments.len(), tf::DynamicValue::default);
        let request = tf::call_function::Request { name: function.into(), arguments: encoded };
        let called = answer(self.service.call_function(Request::new(request)).await);
        match called.error {
            Some(error) => Err(FunctionError {
                text: error.text,
                argument: error.function_argument.and_then(|argument| usize::try_from(argument).ok()),
            }),
            None => {
                Ok(wire::value(called.result.as_ref(), &signature.returns).unwrap_or_else(|errors| panic!("{errors}")))
            }
        }
    }

    /// Validates and opens an ephemeral resource.
    ///
    /// # Errors
    /// What the provider says is wrong.
    ///
    /// # Panics
    /// When the provider has no such ephemeral resource.
    pub async fn open(&self, type_name: &str, config: &Value) -> Result<Open, Diagnostics> {
        let schema = self.ephemeral_schema(type_name);
        let config = Some(encode(schema, &complete(schema, config)));
        let request =
            tf::validate_ephemeral_resource_config::Request { type_name: type_name.into(), config: config.clone() };
        let checked = answer(self.service.validate_ephemeral_resource_config(Request::new(request)).await);
        let found = wire::read_diagnostics(checked.diagnostics);
        if found.has_errors() {
            return Err(found);
        }
        let request = tf::open_ephemeral_resource::Request { type_name: type_name.into(), config };
        let opened = answer(self.service.open_ephemeral_resource(Request::new(request)).await);
        let found = wire::read_diagnostics(opened.diagnostics);
        if found.has_errors() {
            return Err(found);
        }
        Ok(Open {
            result: decode(schema, opened.result.as_ref()),
            renew_at: opened.renew_at.map(|at| at.seconds),
            type_name: type_name.into(),
            private: opened.private,
        })
    }

    /// Renews what was opened.
    pub async fn renew(&self, open: &mut Open) -> Diagnostics {
        let request =
            tf::renew_ephemeral_resource::Request { type_name: open.type_name.clone(), private: open.private.clone() };
        let renewed = answer(self.service.renew_ephemeral_resource(Request::new(request)).await);
        open.renew_at = renewed.renew_at.map(|at| at.seconds);
        open.private = renewed.private;
        wire::read_diagnostics(renewed.diagnostics)
    }

    /// Closes what was opened.
    pub async fn close(&self, open: Open) -> Diagnostics {
        let request = tf::close_ephemeral_resource::Request { type_name: open.type_name, private: open.private };
        wire::read_diagnostics(answer(self.service.close_ephemeral_resource(Request::new(request)).await).diagnostics)
    }

    /// Validates and reads a data source.
    ///
    /// # Errors
    /// What the provider says is wrong.
    ///
    /// # Panics
    /// When the provider has no such data source.
    pub async fn data(&self, type_name: &str, config: &Value) -> Result<Value, Diagnostics> {
        let Some(kind) = self.service.data_sources.get(type_name) else { panic!("no data source {type_name}") };
        let schema = kind.shape().0;
        let config = Some(encode(schema, &complete(schema, config)));
        let request =
            tf::validate_data_resource_config::Request { type_name: type_name.into(), config: config.clone() };
        let checked = answer(self.service.validate_data_resource_config(Request::new(request)).await);
        let found = wire::read_diagnostics(checked.diagnostics);
        if found.has_errors() {
            return Err(found);
        }
        let request = tf::read_data_source::Request { type_name: type_name.into(), config };
        let read = answer(self.service.read_data_source(Request::new(request)).await);
        let found = wire::read_diagnostics(read.diagnostics);
        if found.has_errors() { Err(found) } else { Ok(decode(schema, read.state.as_ref())) }
    }

    fn ephemeral_schema(&self, type_name: &str) -> &Schema {
        match self.service.ephemerals.get(type_name) {
            Some(kind) => kind.shape().0,
            None => panic!("no ephemeral resource {type_name}"),
        }
    }
}
