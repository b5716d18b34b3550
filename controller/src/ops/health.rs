//! The HTTP endpoints: `/metrics` on one port, `/healthz` and `/readyz` on the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ops::metrics::Metrics;

/// How often the controllers' threads say that they still come to what they have to do.
const BEAT: Duration = Duration::from_secs(1);
/// When they have not said so for this long they hang, and the kubelet should start the controller anew.
const STUCK: Duration = Duration::from_secs(60);

/// Tells the probes how the controller stands.
#[derive(Default)]
pub struct Health {
    synced: AtomicBool,
    beat: Mutex<Option<Instant>>,
}

impl Health {
    /// Marks the caches as filled: from now on the controller is ready.
    pub fn mark_synced(&self) {
        self.synced.store(true, Ordering::Release);
    }

    fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn alive(&self, now: Instant) -> (StatusCode, &'static str) {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        if beat.is_some_and(|beat| now.saturating_duration_since(beat) >= STUCK) {
            return (StatusCode::SERVICE_UNAVAILABLE, "the controllers hang");
        }
        (StatusCode::OK, "ok")
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

/// Binds both ports (0 takes a free one) and serves until `stop` is cancelled. Probes have a thread of their own, so that they are answered
/// however much there is to do; they tell when the other threads hang.
pub async fn serve(
    address: IpAddr,
    (metrics_port, probe_port): (u16, u16),
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
) -> std::io::Result<Listening> {
    let address = of_this_machine(address);
    let metrics_listener = TcpListener::bind((address, metrics_port)).await?;
    let probe_listener = std::net::TcpListener::bind((address, probe_port))?;
    probe_listener.set_nonblocking(true)?;
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
    let (alive, ready) = (health.clone(), health.clone());
    let probe_routes = Router::new()
        .route("/healthz", get(move || async move { alive.alive(Instant::now()) }))
        .route("/readyz", get(move || async move { ready.ready() }));
    let probes = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = stop.clone();
    std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
        probes.block_on(async {
            match TcpListener::from_std(probe_listener) {
                Ok(listener) => answer(listener, probe_routes, end).await,
                Err(error) => tracing::error!(%error, "HTTP server ended"),
            }
        });
    })?;
    tokio::spawn(answer(metrics_listener, metrics_routes, stop.clone()));
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        loop {
            health.beat();
            tokio::time::sleep(BEAT).await;
        }
    }));
    Ok(listening)
}

/// Gives the address to listen on: `::` takes IPv4 as well, and where IPv6 is switched off there is only that. In an IPv6 cluster a pod has no other
/// address, and is probed and scraped there.
fn of_this_machine(address: IpAddr) -> IpAddr {
    let has_ipv6 = || std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if address == Ipv6Addr::UNSPECIFIED && !has_ipv6() { Ipv4Addr::UNSPECIFIED.into() } else { address }
}

async fn answer(listener: TcpListener, routes: Router, stop: CancellationToken) {
    if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::error!(%error, "HTTP server ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_listened_on_where_there_are_both() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(of_this_machine(loopback), loopback);
        let all = of_this_machine(Ipv6Addr::UNSPECIFIED.into());
        let has_ipv6 = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        assert!(all.is_unspecified() && (all.is_ipv6() || !has_ipv6), "{all}");
    }

    #[test]
    fn what_has_not_beaten_for_long_hangs() {
        let health = Health::default();
        assert_eq!(health.alive(Instant::now()).0, StatusCode::OK, "it only starts");
        health.beat();
        let now = Instant::now();
        assert_eq!(health.alive(now).0, StatusCode::OK);
        assert_eq!(health.alive(now + STUCK).0, StatusCode::SERVICE_UNAVAILABLE);
        health.beat();
        assert_eq!(health.alive(now).0, StatusCode::OK, "a beat after that moment");
    }
}
