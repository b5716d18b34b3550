//! Functions and ephemeral resources: what answers values without keeping them.

use std::sync::Arc;

use crate::engine::{check, settle};
use crate::proto::terraform as tf;
use crate::server::service::{EphemeralKind, FunctionKind, Service, guard, own_limit, unknown_type};
use crate::server::wire;
use crate::{Diagnostics, FunctionError, Opened, Renewed, Value};

/// A value that was opened, in the protocol's terms.
pub(super) struct OpenedValue {
    pub(super) result: tf::DynamicValue,
    pub(super) opened: Opened,
    pub(super) diagnostics: Diagnostics,
}

impl Service {
    pub(super) fn evaluate(&self, request: &tf::call_function::Request) -> Result<tf::DynamicValue, FunctionError> {
        let missing = || FunctionError::new(format!("This provider has no function {:?}.", request.name));
        let FunctionKind { function, signature } = self.functions().get(request.name.as_str()).ok_or_else(missing)?;
        let least = signature.parameters.len();
        if request.arguments.len() < least || (signature.variadic.is_none() && request.arguments.len() > least) {
            let given = request.arguments.len();
            return Err(FunctionError::new(format!("{} takes {least} arguments, not {given}.", request.name)));
        }
        let parameters = signature.parameters.iter().chain(signature.variadic.iter().cycle());
        let mut arguments = Vec::with_capacity(request.arguments.len());
        for (at, (parameter, argument)) in parameters.zip(&request.arguments).enumerate() {
            let value = wire::value(Some(argument), &parameter.kind);
            let value = value.map_err(|errors| FunctionError::from(errors).argument(at))?;
            if value.is_null() && !parameter.nullable {
                return Err(FunctionError::new(format!("{} must not be null.", parameter.name)).argument(at));
            }
            arguments.push(value);
        }
        let answer = function.call(&arguments)?;
        Ok(wire::dynamic(&answer, &signature.returns)?)
    }

    fn ephemeral(&self, name: &str) -> Result<Arc<EphemeralKind>, Diagnostics> {
        self.ephemerals.get(name).cloned().ok_or_else(|| unknown_type("ephemeral resource", name))
    }

    pub(super) fn validate_ephemeral(
        &self,
        request: &tf::validate_ephemeral_resource_config::Request,
    ) -> Result<Diagnostics, Diagnostics> {
        let kind = self.ephemeral(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let mut found = check(schema, &config);
        found.extend(kind.resource.validate(&config));
        Ok(found)
    }

    pub(super) async fn open(&self, request: tf::open_ephemeral_resource::Request) -> Result<OpenedValue, Diagnostics> {
        let kind = self.ephemeral(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let ctx = self.context(own_limit(&config, "read").unwrap_or(schema.timeouts.read), Vec::new());
        let (task_kind, task_ctx, task_config) = (kind.clone(), ctx.clone(), config.clone());
        let mut opened = guard(async move { task_kind.resource.open(&task_ctx, task_config).await }).await?;
        let result = settle(schema, &config, std::mem::replace(&mut opened.result, Value::Null))?;
        Ok(OpenedValue { result: wire::dynamic(&result, shape)?, opened, diagnostics: ctx.take_warnings() })
    }

    pub(super) async fn renew(&self, request: tf::renew_ephemeral_resource::Request) -> Result<Renewed, Diagnostics> {
        let kind = self.ephemeral(&request.type_name)?;
        let ctx = self.context(kind.shape().0.timeouts.read, Vec::new());
        guard(async move { kind.resource.renew(&ctx, request.private.unwrap_or_default()).await }).await
    }

    pub(super) async fn close(&self, request: tf::close_ephemeral_resource::Request) -> Result<(), Diagnostics> {
        let kind = self.ephemeral(&request.type_name)?;
        let ctx = self.context(kind.shape().0.timeouts.delete, Vec::new());
        guard(async move { kind.resource.close(&ctx, request.private.unwrap_or_default()).await }).await
    }
}
