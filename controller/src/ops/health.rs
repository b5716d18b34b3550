//! The HTTP endpoints: `/metrics` on one port, `/healthz` and `/readyz` on the other.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ops::metrics::Metrics;

/// Tells the probes how the controller stands.
#[derive(Default)]
pub struct Health {
    synced: AtomicBool,
}

impl Health {
    /// Marks the caches as filled: from now on the controller is ready.
    pub fn mark_synced(&self) {
        self.synced.store(true, Ordering::Release);
    }

    fn ready(&self) -> (StatusCode, &'static str) {
        if self.synced.load(Ordering::Acquire) {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "caches are not filled yet")
        }
    }
}

/// Says where the two servers listen.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// Address of `/metrics`.
    pub metrics: SocketAddr,
    /// Address of `/healthz` and `/readyz`.
    pub probes: SocketAddr,
}

/// Binds both ports (0 takes a free one) and serves until `stop` is cancelled.
pub async fn serve(
    address: IpAddr,
    (metrics_port, probe_port): (u16, u16),
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
) -> std::io::Result<Listening> {
    let metrics_listener = TcpListener::bind((address, metrics_port)).await?;
    let probe_listener = TcpListener::bind((address, probe_port)).await?;
    let listening = Listening { metrics: metrics_listener.local_addr()?, probes: probe_listener.local_addr()? };

    let metrics_routes = Router::new().route(
        "/metrics",
        get(move || {
            let metrics = metrics.clone();
            async move {
                // a large cluster has many series: probes are answered meanwhile
                let text = tokio::task::spawn_blocking(move || metrics.encode()).await;
                let text = text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
                text.map(|text| {
                    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
                })
            }
        }),
    );
    let probe_routes = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(move || async move { health.ready() }));
    for (listener, routes) in [(metrics_listener, metrics_routes), (probe_listener, probe_routes)] {
        let stop = stop.clone();
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
                tracing::error!(%error, "HTTP server ended");
            }
        });
    }
    Ok(listening)
}
