//! The protocol's calls, one by one: each hands its request to the [`Service`] and shapes the answer.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::Diagnostics;
use crate::proto::terraform as tf;
use crate::server::service::{ResourceKind, Service, at_least_one_error, guard};
use crate::server::wire;

type Answer<T> = Result<Response<T>, Status>;

/// Runs pure code; a panic becomes an error.
async fn guard_sync(
    service: &Arc<Service>,
    work: impl FnOnce(&Service) -> Result<Diagnostics, Diagnostics> + Send + 'static,
) -> Vec<tf::Diagnostic> {
    let service = service.clone();
    let found = guard(async move { work(&service) }).await;
    wire::diagnostics(found.unwrap_or_else(|errors| errors))
}

fn signatures(service: &Service) -> HashMap<String, tf::Function> {
    let functions = service.functions().iter();
    functions.map(|(name, kind)| ((*name).to_string(), wire::signature(&kind.signature))).collect()
}

fn capabilities() -> tf::ServerCapabilities {
    tf::ServerCapabilities { plan_destroy: true, get_provider_schema_optional: true, move_resource_state: true }
}

#[tonic::async_trait]
impl tf::provider_server::Provider for Arc<Service> {
    async fn get_metadata(&self, _: Request<tf::get_metadata::Request>) -> Answer<tf::get_metadata::Response> {
        let name = |name: &&'static str| tf::get_metadata::TypeName { type_name: (*name).to_string() };
        let functions =
            self.functions().keys().map(|name| tf::get_metadata::FunctionName { name: (*name).to_string() });
        Ok(Response::new(tf::get_metadata::Response {
            functions: functions.collect(),
            ephemeral_resources: self.ephemerals.keys().map(name).collect(),
            server_capabilities: Some(capabilities()),
            diagnostics: Vec::new(),
            data_sources: self.data_sources.keys().map(name).collect(),
            resources: self.resources.keys().map(name).collect(),
        }))
    }

    async fn get_provider_schema(
        &self,
        _: Request<tf::get_provider_schema::Request>,
    ) -> Answer<tf::get_provider_schema::Response> {
        let resources = self.resources.iter().map(|(name, kind)| ((*name).to_string(), wire::schema(kind.shape().0)));
        let data = self.data_sources.iter().map(|(name, kind)| ((*name).to_string(), wire::schema(kind.shape().0)));
        let ephemeral = self.ephemerals.iter().map(|(name, kind)| ((*name).to_string(), wire::schema(kind.shape().0)));
        Ok(Response::new(tf::get_provider_schema::Response {
            functions: signatures(self),
            ephemeral_resource_schemas: ephemeral.collect(),
            provider: Some(wire::schema(self.provider_shape().0)),
            resource_schemas: resources.collect(),
            data_source_schemas: data.collect(),
            diagnostics: Vec::new(),
            provider_meta: None,
            server_capabilities: Some(capabilities()),
        }))
    }

    async fn get_resource_identity_schemas(
        &self,
        _: Request<tf::get_resource_identity_schemas::Request>,
    ) -> Answer<tf::get_resource_identity_schemas::Response> {
        let identity = |(name, kind): (&&'static str, &Arc<ResourceKind>)| {
            let identity = kind.shape().0.identity.as_ref()?;
            Some(((*name).to_string(), wire::identity_schema(identity)))
        };
        Ok(Response::new(tf::get_resource_identity_schemas::Response {
            identity_schemas: self.resources.iter().filter_map(identity).collect(),
            diagnostics: Vec::new(),
        }))
    }

    async fn get_functions(&self, _: Request<tf::get_functions::Request>) -> Answer<tf::get_functions::Response> {
        Ok(Response::new(tf::get_functions::Response { functions: signatures(self), diagnostics: Vec::new() }))
    }

    async fn call_function(&self, request: Request<tf::call_function::Request>) -> Answer<tf::call_function::Response> {
        let (service, request) = (self.clone(), request.into_inner());
        let outcome = guard(async move { Ok(service.evaluate(&request)) }).await;
        Ok(Response::new(match outcome.unwrap_or_else(|errors| Err(errors.into())) {
            Ok(result) => tf::call_function::Response { result: Some(result), error: None },
            Err(error) => {
                let argument = error.argument.and_then(|argument| i64::try_from(argument).ok());
                let error = tf::FunctionError { text: error.text, function_argument: argument };
                tf::call_function::Response { result: None, error: Some(error) }
            }
        }))
    }

    async fn validate_provider_config(
        &self,
        request: Request<tf::validate_provider_config::Request>,
    ) -> Answer<tf::validate_provider_config::Response> {
        let request = request.into_inner();
        let diagnostics = guard_sync(self, move |service| service.validate_provider(&request)).await;
        Ok(Response::new(tf::validate_provider_config::Response { diagnostics }))
    }

    async fn validate_resource_config(
        &self,
        request: Request<tf::validate_resource_config::Request>,
    ) -> Answer<tf::validate_resource_config::Response> {
        let request = request.into_inner();
        let diagnostics = guard_sync(self, move |service| service.validate(&request)).await;
        Ok(Response::new(tf::validate_resource_config::Response { diagnostics }))
    }

    async fn validate_data_resource_config(
        &self,
        request: Request<tf::validate_data_resource_config::Request>,
    ) -> Answer<tf::validate_data_resource_config::Response> {
        let request = request.into_inner();
        let diagnostics = guard_sync(self, move |service| service.validate_data(&request)).await;
        Ok(Response::new(tf::validate_data_resource_config::Response { diagnostics }))
    }

    async fn configure_provider(
        &self,
        request: Request<tf::configure_provider::Request>,
    ) -> Answer<tf::configure_provider::Response> {
        // a process that is attached to outlives a stopped run: the next one begins with a fresh token
        {
            let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
            if stop.is_cancelled() {
                *stop = CancellationToken::new();
            }
        }
        let request = request.into_inner();
        let diagnostics = guard_sync(self, move |service| {
            let (_, shape) = service.provider_shape();
            Ok(service.provider.configure(wire::value(request.config.as_ref(), shape)?))
        })
        .await;
        Ok(Response::new(tf::configure_provider::Response { diagnostics }))
    }

    async fn upgrade_resource_state(
        &self,
        request: Request<tf::upgrade_resource_state::Request>,
    ) -> Answer<tf::upgrade_resource_state::Response> {
        let (service, request) = (self.clone(), request.into_inner());
        let outcome = guard(async move { service.upgrade_state(&request) }).await;
        Ok(Response::new(match outcome {
            Ok(state) => tf::upgrade_resource_state::Response { upgraded_state: Some(state), diagnostics: Vec::new() },
            Err(errors) => {
                tf::upgrade_resource_state::Response { upgraded_state: None, diagnostics: wire::diagnostics(errors) }
            }
        }))
    }

    async fn upgrade_resource_identity(
        &self,
        request: Request<tf::upgrade_resource_identity::Request>,
    ) -> Answer<tf::upgrade_resource_identity::Response> {
        let (upgraded_identity, errors) = match self.upgrade_identity(&request.into_inner()) {
            Ok(identity) => (Some(identity), Diagnostics::new()),
            Err(errors) => (None, errors),
        };
        let diagnostics = wire::diagnostics(errors);
        Ok(Response::new(tf::upgrade_resource_identity::Response { upgraded_identity, diagnostics }))
    }

    async fn move_resource_state(
        &self,
        request: Request<tf::move_resource_state::Request>,
    ) -> Answer<tf::move_resource_state::Response> {
        let (service, request) = (self.clone(), request.into_inner());
        let outcome = guard(async move { service.move_state(request) }).await;
        Ok(Response::new(match outcome {
            Ok(stored) => tf::move_resource_state::Response {
                target_state: Some(stored.state),
                diagnostics: wire::diagnostics(stored.diagnostics),
                target_private: stored.private,
                target_identity: stored.identity,
            },
            Err(errors) => {
                let diagnostics = wire::diagnostics(at_least_one_error(errors));
                tf::move_resource_state::Response { diagnostics, ..Default::default() }
            }
        }))
    }

    async fn import_resource_state(
        &self,
        request: Request<tf::import_resource_state::Request>,
    ) -> Answer<tf::import_resource_state::Response> {
        let request = request.into_inner();
        let type_name = request.type_name.clone();
        let outcome = self.import_state(request).await;
        Ok(Response::new(match outcome {
            Ok(stored) => tf::import_resource_state::Response {
                imported_resources: vec![tf::import_resource_state::ImportedResource {
                    type_name,
                    state: Some(stored.state),
                    private: stored.private,
                    identity: stored.identity,
                }],
                diagnostics: wire::diagnostics(stored.diagnostics),
            },
            Err(errors) => tf::import_resource_state::Response {
                imported_resources: Vec::new(),
                diagnostics: wire::diagnostics(errors),
            },
        }))
    }

    async fn read_resource(&self, request: Request<tf::read_resource::Request>) -> Answer<tf::read_resource::Response> {
        let request = request.into_inner();
        let (state, private) = (request.current_state.clone(), request.private.clone());
        let identity = request.current_identity.clone();
        Ok(Response::new(match self.read_state(request).await {
            Ok(stored) => tf::read_resource::Response {
                new_state: Some(stored.state),
                diagnostics: wire::diagnostics(stored.diagnostics),
                private: stored.private,
                new_identity: stored.identity,
            },
            Err(errors) => {
                let diagnostics = wire::diagnostics(at_least_one_error(errors));
                tf::read_resource::Response { new_state: state, diagnostics, private, new_identity: identity }
            }
        }))
    }

    async fn plan_resource_change(
        &self,
        request: Request<tf::plan_resource_change::Request>,
    ) -> Answer<tf::plan_resource_change::Response> {
        let request = request.into_inner();
        let (prior, private) = (request.prior_state.clone(), request.prior_private.clone());
        let identity = request.prior_identity.clone();
        Ok(Response::new(match self.plan_change(request).await {
            Ok(planned) => tf::plan_resource_change::Response {
                planned_state: Some(planned.state),
                requires_replace: planned.requires_replace,
                planned_private: planned.private,
                diagnostics: wire::diagnostics(planned.diagnostics),
                planned_identity: planned.identity,
            },
            Err(errors) => tf::plan_resource_change::Response {
                planned_state: prior,
                requires_replace: Vec::new(),
                planned_private: private,
                diagnostics: wire::diagnostics(at_least_one_error(errors)),
                planned_identity: identity,
            },
        }))
    }

    async fn apply_resource_change(
        &self,
        request: Request<tf::apply_resource_change::Request>,
    ) -> Answer<tf::apply_resource_change::Response> {
        let request = request.into_inner();
        let (prior, private) = (request.prior_state.clone(), request.planned_private.clone());
        let identity = request.planned_identity.clone();
        Ok(Response::new(match self.apply_change(request).await {
            Ok(stored) => tf::apply_resource_change::Response {
                new_state: Some(stored.state),
                private: stored.private,
                diagnostics: wire::diagnostics(stored.diagnostics),
                new_identity: stored.identity,
            },
            Err(errors) => {
                let diagnostics = wire::diagnostics(at_least_one_error(errors));
                tf::apply_resource_change::Response { new_state: prior, private, diagnostics, new_identity: identity }
            }
        }))
    }

    async fn read_data_source(
        &self,
        request: Request<tf::read_data_source::Request>,
    ) -> Answer<tf::read_data_source::Response> {
        Ok(Response::new(match self.read_data(request.into_inner()).await {
            Ok(stored) => tf::read_data_source::Response {
                state: Some(stored.state),
                diagnostics: wire::diagnostics(stored.diagnostics),
            },
            Err(errors) => tf::read_data_source::Response {
                state: None,
                diagnostics: wire::diagnostics(at_least_one_error(errors)),
            },
        }))
    }

    async fn validate_ephemeral_resource_config(
        &self,
        request: Request<tf::validate_ephemeral_resource_config::Request>,
    ) -> Answer<tf::validate_ephemeral_resource_config::Response> {
        let request = request.into_inner();
        let diagnostics = guard_sync(self, move |service| service.validate_ephemeral(&request)).await;
        Ok(Response::new(tf::validate_ephemeral_resource_config::Response { diagnostics }))
    }

    async fn open_ephemeral_resource(
        &self,
        request: Request<tf::open_ephemeral_resource::Request>,
    ) -> Answer<tf::open_ephemeral_resource::Response> {
        Ok(Response::new(match self.open(request.into_inner()).await {
            Ok(value) => tf::open_ephemeral_resource::Response {
                diagnostics: wire::diagnostics(value.diagnostics),
                renew_at: value.opened.renew_at.map(wire::timestamp),
                result: Some(value.result),
                private: Some(value.opened.private),
            },
            Err(errors) => {
                let diagnostics = wire::diagnostics(at_least_one_error(errors));
                tf::open_ephemeral_resource::Response { diagnostics, ..Default::default() }
            }
        }))
    }

    async fn renew_ephemeral_resource(
        &self,
        request: Request<tf::renew_ephemeral_resource::Request>,
    ) -> Answer<tf::renew_ephemeral_resource::Response> {
        let request = request.into_inner();
        let kept = request.private.clone();
        Ok(Response::new(match self.renew(request).await {
            Ok(renewed) => tf::renew_ephemeral_resource::Response {
                diagnostics: Vec::new(),
                renew_at: renewed.renew_at.map(wire::timestamp),
                private: Some(renewed.private),
            },
            Err(errors) => {
                let diagnostics = wire::diagnostics(at_least_one_error(errors));
                tf::renew_ephemeral_resource::Response { diagnostics, renew_at: None, private: kept }
            }
        }))
    }

    async fn close_ephemeral_resource(
        &self,
        request: Request<tf::close_ephemeral_resource::Request>,
    ) -> Answer<tf::close_ephemeral_resource::Response> {
        let errors = self.close(request.into_inner()).await.err().map(at_least_one_error).unwrap_or_default();
        Ok(Response::new(tf::close_ephemeral_resource::Response { diagnostics: wire::diagnostics(errors) }))
    }

    async fn stop_provider(&self, _: Request<tf::stop_provider::Request>) -> Answer<tf::stop_provider::Response> {
        tracing::info!("asked to stop: operations in flight finish with what they have");
        self.stop_token().cancel();
        Ok(Response::new(tf::stop_provider::Response::default()))
    }
}
