//! The kubelet's HTTPS server on loopback: container logs for `kubectl logs`, and the webhook.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    admission::Profiles,
    logs::{self, Key, Wanted},
};
use crate::Context;

/// Reads the kubelet's certificate and key.
///
/// # Errors
/// When they cannot be read.
pub fn tls(ctx: &Context) -> Result<Arc<ServerConfig>> {
    let certificates = CertificateDer::pem_file_iter(&ctx.kubelet_cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("reading {}", ctx.kubelet_cert_file.display()))?;
    let key = PrivateKeyDer::from_pem_file(&ctx.kubelet_key_file)
        .with_context(|| format!("reading {}", ctx.kubelet_key_file.display()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_no_client_auth().with_single_cert(certificates, key)?))
}

/// Builds the routes.
pub fn router(shared: Arc<Shared>, profiles: Arc<Profiles>) -> Router {
    let logs =
        Router::new().route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs)).with_state(shared);
    Router::new()
        .route("/mutate", post(mutate))
        .with_state(profiles)
        .route("/healthz", get(|| async { "ok" }))
        .merge(logs)
}

/// Accepts connections until it is told to stop.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(tls);
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else { continue };
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            // A client that goes away is no failure of ours.
            stop.run_until_cancelled(connection).await;
        });
    }
}

async fn mutate(State(profiles): State<Arc<Profiles>>, Json(review): Json<Value>) -> Json<Value> {
    Json(profiles.review(&review).await)
}

async fn container_logs(
    State(shared): State<Arc<Shared>>,
    Path(key): Path<Key>,
    Query(wanted): Query<Wanted>,
) -> Response {
    match logs::read(&shared.logs, &key, &wanted).await {
        Ok(body) => body.into_response(),
        Err(error) => (StatusCode::NOT_FOUND, format!("{error:#}\n")).into_response(),
    }
}
