//! Probes of a container: HTTP and TCP, against the port that the process was really given.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::http;

/// Between looks of an eager probe: the kubelet too looks out of turn at a container that has just started.
const EAGER_PERIOD: Duration = Duration::from_millis(300);

/// A probe and what it has seen.
pub struct Prober {
    target: Target,
    period: Duration,
    timeout: Duration,
    successes_wanted: u32,
    failures_wanted: u32,
    eager: bool,
    next: Instant,
    successes: u32,
    failures: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Http(String),
    Tcp(u16),
    /// A command: there is no container to run it in, so it counts as passed.
    Unknown,
}

/// What a probe says after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As many successes in a row as asked for.
    Passed,
    /// As many failures in a row as asked for.
    Failed,
    /// Not decided yet.
    Open,
}

impl Prober {
    /// Sets up a probe of a container that starts now. An eager one looks often until its first success: only for readiness,
    /// where a failure ends nothing.
    pub fn new(probe: &Probe, container: &Container, ports: &BTreeMap<u16, u16>, eager: bool) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
        };
        Self {
            target: target(probe, container, ports),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            successes_wanted: count(probe.success_threshold, 1),
            failures_wanted: count(probe.failure_threshold, 3),
            eager,
            next: Instant::now() + if eager { Duration::ZERO } else { seconds(probe.initial_delay_seconds, 0) },
            successes: 0,
            failures: 0,
        }
    }

    /// Looks, when it is time to.
    pub async fn look(&mut self) -> Verdict {
        if Instant::now() >= self.next {
            self.next = Instant::now() + self.period;
            if self.ask().await {
                (self.successes, self.failures) = (self.successes + 1, 0);
            } else {
                (self.successes, self.failures) = (0, self.failures + 1);
            }
            if self.eager && self.successes == 0 {
                self.next = Instant::now() + self.period.min(EAGER_PERIOD);
            }
        }
        match (self.successes >= self.successes_wanted, self.failures >= self.failures_wanted) {
            (true, _) => Verdict::Passed,
            (_, true) => Verdict::Failed,
            _ => Verdict::Open,
        }
    }

    async fn ask(&self) -> bool {
        let answer = async {
            match &self.target {
                Target::Http(url) => http::get(url).await.is_ok(),
                Target::Tcp(port) => tokio::net::TcpStream::connect(("127.0.0.1", *port)).await.is_ok(),
                Target::Unknown => true,
            }
        };
        tokio::time::timeout(self.timeout, answer).await.unwrap_or(false)
    }
}

fn target(probe: &Probe, container: &Container, ports: &BTreeMap<u16, u16>) -> Target {
    let port = |port: &IntOrString| {
        let number = match port {
            IntOrString::Int(number) => u16::try_from(*number).ok(),
            IntOrString::String(name) => {
                let named = container.ports.iter().flatten().find(|port| port.name.as_ref() == Some(name));
                named.and_then(|port| u16::try_from(port.container_port).ok())
            }
        }?;
        Some(ports.get(&number).copied().unwrap_or(number))
    };
    let found = match (&probe.http_get, &probe.tcp_socket) {
        (Some(http), _) => port(&http.port).map(|port| {
            let path = http.path.as_deref().unwrap_or("/").trim_start_matches('/');
            Target::Http(format!("http://127.0.0.1:{port}/{path}"))
        }),
        (None, Some(tcp)) => port(&tcp.port).map(Target::Tcp),
        (None, None) => None,
    };
    found.unwrap_or(Target::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_follow_the_port_that_was_given() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c", "ports": [{ "name": "http", "containerPort": 8081 }]
        }))
        .unwrap();
        let ports = BTreeMap::from([(8081, 20001)]);
        for (probe, expected) in [
            (
                serde_json::json!({ "httpGet": { "path": "/readyz", "port": "http" } }),
                Target::Http("http://127.0.0.1:20001/readyz".to_owned()),
            ),
            (serde_json::json!({ "httpGet": { "port": 9000 } }), Target::Http("http://127.0.0.1:9000/".to_owned())),
            (serde_json::json!({ "tcpSocket": { "port": 8081 } }), Target::Tcp(20001)),
            (serde_json::json!({ "exec": { "command": ["true"] } }), Target::Unknown),
        ] {
            let probe: Probe = serde_json::from_value(probe).unwrap();
            assert_eq!(target(&probe, &container, &ports), expected);
        }
    }
}
