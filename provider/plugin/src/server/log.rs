//! The log as go-plugin wants it: one JSON object a line on standard error, which Terraform sorts into its own log.

use std::io::Write;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Installs the log, unless the program has one already. The level is Terraform's: `TF_LOG_PROVIDER`, else `TF_LOG`;
/// `RUST_LOG` refines it.
pub(super) fn install() {
    let asked = ["TF_LOG_PROVIDER", "TF_LOG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|level| !level.is_empty()));
    // a subscriber that the program installed before stays in charge
    let _ =
        tracing_subscriber::registry().with(filter(asked.as_deref())).with(Hclog.with_filter(discreet())).try_init();
}

/// What is never logged, whatever was asked for: of an EKS token, `aws_sigv4` traces the very URL that it signs, with the session token in it, and
/// `aws_smithy_runtime` traces calls with their bodies, where STS is told of identity tokens and tells credentials. Each with the level that it may have.
const TELLTALE: [(&str, Level); 2] =
    [("aws_sigv4", Level::INFO), ("aws_smithy_runtime::client::orchestrator", Level::DEBUG)];

/// Keeps the log from what tells secrets. A directive of `RUST_LOG` cannot undo it, as it could another directive.
fn discreet() -> FilterFn {
    filter_fn(|about| TELLTALE.iter().all(|(from, most)| about.level() <= most || !about.target().starts_with(from)))
}

fn filter(asked: Option<&str>) -> EnvFilter {
    let level = match asked.map(|level| level.to_ascii_uppercase()).as_deref() {
        None | Some("OFF") => "warn",
        Some("JSON" | "TRACE") => "trace",
        Some("DEBUG") => "debug",
        Some("INFO") => "info",
        Some("ERROR") => "error",
        Some(_) => "warn",
    };
    let quiet = "h2=info,hyper=info,hyper_util=info,rustls=info,tower=info";
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{level},{quiet}")))
}

struct Hclog;

impl<S: Subscriber> Layer<S> for Hclog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line(event, Timestamp::now());
        // standard error is gone only when Terraform is: nothing is left to tell
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

fn line(event: &Event<'_>, now: Timestamp) -> Json {
    let level = match *event.metadata().level() {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let mut fields = Fields(Map::new());
    event.record(&mut fields);
    let mut line = fields.0;
    let message = line.remove("message").unwrap_or_else(|| Json::from(""));
    line.insert("@level".into(), level.into());
    line.insert("@message".into(), message);
    line.insert("@module".into(), event.metadata().target().replace("::", ".").into());
    line.insert("@timestamp".into(), now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string().into());
    Json::Object(line)
}

struct Fields(Map<String, Json>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Json>) {
        self.0.insert(field.name().to_string(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps where each event comes from.
    #[derive(Clone, Default)]
    struct Heard(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Heard {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let about = event.metadata();
            self.0.lock().expect("no panic").push(format!("{} {}", about.level(), about.target()));
        }
    }

    #[test]
    fn what_tells_secrets_is_not_traced_whatever_is_asked_for() {
        let heard = Heard::default();
        let asked = EnvFilter::new("trace,aws_sigv4::http_request=trace");
        let log = tracing_subscriber::registry().with(asked).with(heard.clone().with_filter(discreet()));
        tracing::subscriber::with_default(log, || {
            tracing::trace!(target: "aws_sigv4::http_request", "signed with a token");
            tracing::debug!(target: "aws_sigv4", "the same");
            tracing::info!(target: "aws_sigv4", "nothing secret");
            tracing::trace!(target: "aws_smithy_runtime::client::orchestrator::http", "a body with credentials");
            tracing::trace!(target: "aws_config", "something else");
        });
        assert_eq!(*heard.0.lock().expect("no panic"), ["INFO aws_sigv4", "TRACE aws_config"]);
        assert!(filter(Some("trace")).to_string().contains("trace"));
    }
}
