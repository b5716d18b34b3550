//! The operations of a [`Provider`]: decode, let the engine and the resource work, encode. Resource code runs in a
//! task of its own, so that a panic becomes a diagnostic and a dropped connection does not cut a create in half.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::engine::{
    broken_promises, check, first_unknown, null_unknowns, plan, replacements, salvage, settle, write_only_values,
};
use crate::proto::terraform as tf;
use crate::schema::validate::parse_duration;
use crate::server::wire;
use crate::{
    AttributePath, Context, DataSource, Diagnostic, Diagnostics, EphemeralResource, Function, PlannedChange, Provider,
    Resource, Schema, Signature, Type, Value,
};

/// More changes at once wait; far above Terraform's own parallelism.
const MOST_APPLIES: u32 = 1024;

/// A schema and its type, built on first use.
#[derive(Default)]
struct Shape(OnceLock<(Schema, Type)>);

impl Shape {
    fn get(&self, make: impl FnOnce() -> Schema) -> (&Schema, &Type) {
        let (schema, kind) = self.0.get_or_init(|| {
            let schema = make();
            let kind = schema.value_type();
            (schema, kind)
        });
        (schema, kind)
    }
}

pub(super) struct ResourceKind {
    pub(super) resource: Box<dyn Resource>,
    shape: Shape,
}

impl ResourceKind {
    pub(super) fn shape(&self) -> (&Schema, &Type) {
        self.shape.get(|| self.resource.schema())
    }
}

pub(crate) struct DataKind {
    source: Box<dyn DataSource>,
    shape: Shape,
}

impl DataKind {
    pub(crate) fn shape(&self) -> (&Schema, &Type) {
        self.shape.get(|| self.source.schema())
    }
}

pub(crate) struct EphemeralKind {
    pub(super) resource: Box<dyn EphemeralResource>,
    shape: Shape,
}

impl EphemeralKind {
    pub(crate) fn shape(&self) -> (&Schema, &Type) {
        self.shape.get(|| self.resource.schema())
    }
}

pub(crate) struct FunctionKind {
    pub(super) function: Box<dyn Function>,
    pub(crate) signature: Signature,
}

/// The protocol service of one provider.
pub(crate) struct Service {
    pub(super) provider: Box<dyn Provider>,
    shape: Shape,
    pub(super) resources: HashMap<&'static str, Arc<ResourceKind>>,
    pub(crate) data_sources: HashMap<&'static str, Arc<DataKind>>,
    pub(crate) ephemerals: HashMap<&'static str, Arc<EphemeralKind>>,
    functions: OnceLock<BTreeMap<&'static str, FunctionKind>>,
    pub(super) stop: Mutex<CancellationToken>,
    /// One permit for each change that is being applied.
    applying: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(provider: impl Provider) -> Self {
        let resources = provider
            .resources()
            .into_iter()
            .map(|resource| (resource.type_name(), Arc::new(ResourceKind { resource, shape: Shape::default() })));
        let data_sources = provider
            .data_sources()
            .into_iter()
            .map(|source| (source.type_name(), Arc::new(DataKind { source, shape: Shape::default() })));
        let ephemerals = provider
            .ephemeral_resources()
            .into_iter()
            .map(|resource| (resource.type_name(), Arc::new(EphemeralKind { resource, shape: Shape::default() })));
        Self {
            ephemerals: ephemerals.collect(),
            functions: OnceLock::new(),
            resources: resources.collect(),
            data_sources: data_sources.collect(),
            provider: Box::new(provider),
            shape: Shape::default(),
            stop: Mutex::default(),
            applying: Arc::new(Semaphore::new(MOST_APPLIES as usize)),
        }
    }

    /// The token that is cancelled when the user stops the run.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no change is being applied, but not longer than `most`.
    pub(crate) async fn idle(&self, most: Duration) {
        let all_applied = self.applying.acquire_many(MOST_APPLIES);
        if tokio::time::timeout(most, all_applied).await.is_err() {
            tracing::warn!("some operations did not end in time");
        }
    }

    pub(crate) fn provider_schema(&self) -> &Schema {
        self.provider_shape().0
    }

    pub(crate) fn resource_schema(&self, name: &str) -> Option<&Schema> {
        self.resources.get(name).map(|kind| kind.shape().0)
    }

    pub(super) fn provider_shape(&self) -> (&Schema, &Type) {
        self.shape.get(|| self.provider.schema())
    }

    /// The functions, made when they are first asked for.
    pub(crate) fn functions(&self) -> &BTreeMap<&'static str, FunctionKind> {
        self.functions.get_or_init(|| {
            let functions = self.provider.functions().into_iter();
            functions
                .map(|function| (function.name(), FunctionKind { signature: function.signature(), function }))
                .collect()
        })
    }

    pub(super) fn resource(&self, name: &str) -> Result<Arc<ResourceKind>, Diagnostics> {
        self.resources.get(name).cloned().ok_or_else(|| unknown_type("resource", name))
    }

    fn data_source(&self, name: &str) -> Result<Arc<DataKind>, Diagnostics> {
        self.data_sources.get(name).cloned().ok_or_else(|| unknown_type("data source", name))
    }

    pub(super) fn context(&self, limit: Duration, private: Vec<u8>) -> Arc<Context> {
        self.context_of(limit, private, Value::Null)
    }

    fn context_of(&self, limit: Duration, private: Vec<u8>, config: Value) -> Arc<Context> {
        let ctx = Context::new(self.stop_token(), limit).with_config(config);
        ctx.set_private(private);
        Arc::new(ctx)
    }

    pub(super) async fn plan_change(&self, request: tf::plan_resource_change::Request) -> Result<Planned, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let prior = wire::value(request.prior_state.as_ref(), shape)?;
        let config = wire::value(request.config.as_ref(), shape)?;
        let planned = if config.is_null() { Value::Null } else { plan(schema, &prior, &config) };
        let ctx = self.context_of(schema.timeouts.read, request.prior_private, config.clone());

        let requires_replace = replacements(schema, &prior, &config, &planned);
        let mut change = PlannedChange { prior, config, planned, requires_replace };
        let engine_plan = change.planned.clone();
        let (hook_kind, hook_ctx) = (kind.clone(), ctx.clone());
        let (mut change, mut diagnostics) = guard(async move {
            let diagnostics = hook_kind.resource.plan(&hook_ctx, &mut change).await;
            Ok((change, diagnostics))
        })
        .await?;
        if change.planned != engine_plan && !change.planned.is_null() {
            change.planned = settle(schema, &engine_plan, change.planned)?;
            for path in replacements(schema, &change.prior, &change.config, &change.planned) {
                change.replace(path);
            }
        }
        diagnostics.extend(ctx.take_warnings());
        Ok(Planned {
            state: wire::planned(&change.planned, schema, shape)?,
            // a new object gets its identity when it is made
            identity: wire::identity(schema, &change.prior)?,
            requires_replace: change.requires_replace.iter().map(wire::path).collect(),
            private: ctx.private(),
            diagnostics,
        })
    }

    pub(super) async fn apply_change(
        &self,
        request: tf::apply_resource_change::Request,
    ) -> Result<Stored, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let prior = wire::value(request.prior_state.as_ref(), shape)?;
        let planned = wire::value(request.planned_state.as_ref(), shape)?;
        let config = wire::value(request.config.as_ref(), shape)?;
        let ctx = self.context_of(limit_of(schema, &prior, &planned), request.planned_private, config);

        let (task_kind, task_ctx, task_prior, task_planned) =
            (kind.clone(), ctx.clone(), prior.clone(), planned.clone());
        // the task holds it and not the call, which is dropped when Terraform dies, while the task goes on
        let applying = self.applying.clone().acquire_owned().await;
        let outcome = guard(async move {
            let (resource, ctx) = (&task_kind.resource, &*task_ctx);
            let done = match (task_prior.is_null(), task_planned.is_null()) {
                (_, true) => resource.delete(ctx, task_prior).await.map(|()| Value::Null),
                (true, false) => resource.create(ctx, task_planned).await,
                (false, false) => resource.update(ctx, task_prior, task_planned).await,
            };
            drop(applying);
            done
        })
        .await;

        let mut diagnostics = ctx.take_warnings();
        let reference = if planned.is_null() { &prior } else { &planned };
        let saved = || ctx.take_saved().map(|saved| salvage(schema, reference, saved));
        let state = match outcome {
            Ok(_) if planned.is_null() => Value::Null,
            Ok(answer) => match settle(schema, &planned, answer) {
                Ok(state) => {
                    diagnostics.extend(first_unknown(&state).map(undecided));
                    diagnostics.extend(broken_promises(schema, &planned, &state).into_iter().map(broken));
                    state
                }
                Err(error) => {
                    diagnostics.extend(Diagnostics::from(error));
                    saved().unwrap_or_else(|| planned.clone())
                }
            },
            Err(errors) => {
                diagnostics.extend(at_least_one_error(errors));
                saved().unwrap_or(prior)
            }
        };
        let state = null_unknowns(state);
        let private = if state.is_null() { Vec::new() } else { ctx.private() };
        Ok(Stored {
            state: wire::dynamic(&state, shape)?,
            identity: wire::identity(schema, &state)?,
            private,
            diagnostics,
        })
    }

    pub(super) async fn read_state(&self, request: tf::read_resource::Request) -> Result<Stored, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let current = wire::value(request.current_state.as_ref(), shape)?;
        if current.is_null() {
            return Ok(Stored {
                state: wire::dynamic(&current, shape)?,
                identity: None,
                private: Vec::new(),
                diagnostics: Diagnostics::new(),
            });
        }
        let limit = own_limit(&current, "read").unwrap_or(schema.timeouts.read);
        let ctx = self.context(limit, request.private);
        let (task_kind, task_ctx, state) = (kind.clone(), ctx.clone(), current.clone());
        let outcome = guard(async move { task_kind.resource.read(&task_ctx, state).await }).await;
        let mut diagnostics = ctx.take_warnings();
        let state = match outcome {
            Ok(Some(answer)) => settle(schema, &current, answer)?,
            Ok(None) => Value::Null,
            Err(errors) => {
                diagnostics.extend(at_least_one_error(errors));
                current
            }
        };
        if let Some(identity) = schema.identity.as_ref().filter(|_| !state.is_null() && !diagnostics.has_errors()) {
            let asked = wire::read_identity(identity, request.current_identity.as_ref())?;
            identity.check(&asked, &identity.of(&state))?;
        }
        Ok(Stored {
            state: wire::dynamic(&state, shape)?,
            identity: wire::identity(schema, &state)?,
            private: ctx.private(),
            diagnostics,
        })
    }

    pub(super) fn validate(&self, request: &tf::validate_resource_config::Request) -> Result<Diagnostics, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let mut found = check(schema, &config);
        let understood = request.client_capabilities.is_some_and(|client| client.write_only_attributes_allowed);
        if !understood {
            found.extend(write_only_values(schema, &config).into_iter().map(not_write_only));
        }
        found.extend(kind.resource.validate(&config));
        Ok(found)
    }

    pub(super) fn validate_data(
        &self,
        request: &tf::validate_data_resource_config::Request,
    ) -> Result<Diagnostics, Diagnostics> {
        let kind = self.data_source(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let mut found = check(schema, &config);
        found.extend(kind.source.validate(&config));
        Ok(found)
    }

    pub(super) fn validate_provider(
        &self,
        request: &tf::validate_provider_config::Request,
    ) -> Result<Diagnostics, Diagnostics> {
        let (schema, shape) = self.provider_shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let mut found = check(schema, &config);
        found.extend(self.provider.validate(&config));
        Ok(found)
    }

    pub(super) async fn read_data(&self, request: tf::read_data_source::Request) -> Result<Stored, Diagnostics> {
        let kind = self.data_source(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let config = wire::value(request.config.as_ref(), shape)?;
        let ctx = self.context(own_limit(&config, "read").unwrap_or(schema.timeouts.read), Vec::new());
        let (task_kind, task_ctx, task_config) = (kind.clone(), ctx.clone(), config.clone());
        let answer = guard(async move { task_kind.source.read(&task_ctx, task_config).await }).await?;
        let state = settle(schema, &config, answer)?;
        Ok(Stored {
            state: wire::dynamic(&state, shape)?,
            identity: None,
            private: Vec::new(),
            diagnostics: ctx.take_warnings(),
        })
    }
}

pub(super) struct Planned {
    pub(super) state: tf::DynamicValue,
    pub(super) identity: Option<tf::ResourceIdentityData>,
    pub(super) requires_replace: Vec<tf::AttributePath>,
    pub(super) private: Vec<u8>,
    pub(super) diagnostics: Diagnostics,
}

pub(super) struct Stored {
    pub(super) state: tf::DynamicValue,
    pub(super) identity: Option<tf::ResourceIdentityData>,
    pub(super) private: Vec<u8>,
    pub(super) diagnostics: Diagnostics,
}

fn undecided(path: AttributePath) -> Diagnostic {
    let detail = "This is a bug of the provider: it left this attribute undecided.";
    Diagnostic::error("Unknown value after apply", detail).at(path)
}

fn broken(path: AttributePath) -> Diagnostic {
    let detail =
        "This is a bug of the provider: the plan promised what this value would be, and it became something else.";
    Diagnostic::error("Broken promise after apply", detail).at(path)
}

fn not_write_only(path: AttributePath) -> Diagnostic {
    let detail = "This attribute is write-only, which needs OpenTofu 1.11 or Terraform 1.11 or newer: an older one would keep the value in \
                  its state.";
    Diagnostic::error("Write-only attributes are not supported here", detail).at(path)
}

/// An operation that failed must say so: without an error Terraform would take silence for success.
pub(super) fn at_least_one_error(mut errors: Diagnostics) -> Diagnostics {
    if !errors.has_errors() {
        errors.push(Diagnostic::error(
            "The operation failed",
            "The provider gave no reason. This is a bug of the provider.",
        ));
    }
    errors
}

fn limit_of(schema: &Schema, prior: &Value, planned: &Value) -> Duration {
    let (operation, default, source) = match (prior.is_null(), planned.is_null()) {
        (_, true) => ("delete", schema.timeouts.delete, prior),
        (true, false) => ("create", schema.timeouts.create, planned),
        (false, false) => ("update", schema.timeouts.update, planned),
    };
    own_limit(source, operation).unwrap_or(default)
}

pub(super) fn own_limit(value: &Value, operation: &str) -> Option<Duration> {
    value.get("timeouts").get(operation).as_str().and_then(parse_duration)
}

pub(super) fn unknown_type(what: &str, name: &str) -> Diagnostics {
    Diagnostic::error(format!("Unknown {what}"), format!("This provider has no {what} {name:?}.")).into()
}

/// Runs resource code in its own task; a panic becomes an error.
pub(super) async fn guard<T: Send + 'static>(
    work: impl Future<Output = Result<T, Diagnostics>> + Send + 'static,
) -> Result<T, Diagnostics> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            let cause = error.try_into_panic().ok();
            let text = cause.as_ref().and_then(|cause| {
                cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied())
            });
            let detail = format!("{}. This is a bug of the provider; please report it.", text.unwrap_or("no message"));
            Err(Diagnostic::error("The provider panicked", detail).into())
        }
    }
}
