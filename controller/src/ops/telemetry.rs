//! JSON log lines with Karpenter's keys, so that the queries and parsers that operators have keep working.
//!
//! A field called `NodeClaim.name` becomes `"NodeClaim": {"name": …}`, as object references look in Karpenter's log; a text
//! that is a JSON object is embedded as one. Fields of the enclosing spans come first, so `controller`, `namespace`, `name`
//! and `reconcileID` are written once, where a reconcile starts.

use std::fmt;
use std::io::Write;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::filter::{EnvFilter, FilterFn, filter_fn};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The commit that the binary was built from, if the build said so.
pub const COMMIT: &str = match option_env!("KARP_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Starts the JSON log on standard output at a level; `RUST_LOG` refines it for debugging.
pub fn start(level: &str) -> Result<(), String> {
    let level = match level.to_ascii_lowercase().as_str() {
        "" | "info" => "info",
        "debug" => "debug",
        "warn" | "warning" => "warn",
        "error" | "fatal" | "panic" => "error",
        other => return Err(format!("log level {other:?} is none of debug, info, warn, error")),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives(level)));
    let log = tracing_subscriber::registry().with(filter).with(JsonLines.with_filter(discreet()));
    log.try_init().map_err(|error| error.to_string())
}

/// What is logged at a level. kube's watcher warns of each 403 by itself, of which `observe` tells all that is news.
fn directives(level: &str) -> String {
    format!("warn,kube_runtime::watcher=error,karp={level},karp_aws={level},karp_kube={level}")
}

/// What is never logged, whatever `RUST_LOG` asks for: `aws_sigv4` traces what it signs, with the session token in it, and `aws_smithy_runtime` traces
/// calls with their bodies, where STS is told of identity tokens and tells credentials. Each with the level that it may have.
const TELLTALE: [(&str, Level); 2] =
    [("aws_sigv4", Level::INFO), ("aws_smithy_runtime::client::orchestrator", Level::DEBUG)];

/// Keeps the log from what tells secrets. A directive of `RUST_LOG` cannot undo it, as it could another directive.
fn discreet() -> FilterFn {
    filter_fn(|about| TELLTALE.iter().all(|(from, most)| about.level() <= most || !about.target().starts_with(from)))
}

struct JsonLines;

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        match name.split_once('.') {
            Some((object, key)) => {
                let entry = self.0.entry(object).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(inner) = entry {
                    inner.insert(key.to_owned(), value);
                }
            }
            None => {
                self.0.insert(name.to_owned(), value);
            }
        }
    }

    fn put_text(&mut self, name: &str, text: String) {
        let embedded = text.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(&text).ok()).flatten();
        self.put(name, embedded.map_or(Value::String(text), Value::Object));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field.name(), value.to_owned());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }
}

/// Renders one line: level, time, logger, message, commit, then the spans' fields and the event's.
fn line(event: &Event<'_>, time: jiff::Timestamp, spans: Map<String, Value>) -> Value {
    let mut own = Fields::default();
    event.record(&mut own);
    let message = own.0.remove("message").unwrap_or_else(|| Value::String(String::new()));
    let mut out = Map::new();
    out.insert("level".into(), event.metadata().level().as_str().into());
    out.insert("time".into(), format!("{time:.3}").into());
    out.insert("logger".into(), "controller".into());
    out.insert("message".into(), message);
    out.insert("commit".into(), COMMIT.into());
    out.extend(spans);
    out.extend(own.0);
    Value::Object(out)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut spans = Map::new();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                spans.extend(fields.0.clone());
            }
        }
        let mut text = line(event, jiff::Timestamp::now(), spans).to_string();
        text.push('\n');
        // A log that nobody reads any more must not end the controller.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }
}

/// Opens the span of a pass that is about no object in particular, under the name of Karpenter's controller for it.
macro_rules! pass_span {
    ($controller:literal) => {
        tracing::info_span!(
            "reconcile",
            controller = $controller,
            namespace = "",
            name = "",
            reconcileID = $crate::ops::telemetry::reconcile_id()
        )
    };
}
pub(crate) use pass_span;

/// Makes an identity for one reconcile, as controller-runtime's `reconcileID`.
pub fn reconcile_id() -> String {
    let bits: u128 = rand::random();
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod secrets;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<Value>>>);

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let time = "2026-03-01T10:00:00.5Z".parse().expect("a time");
            self.0.lock().expect("unpoisoned").push(line(event, time, Map::new()));
        }
    }

    #[test]
    fn a_line_has_karpenters_keys_and_nested_references() {
        let capture = Capture::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(
                NodeClaim.name = "default-abc",
                "instance-types" = "a, b",
                requests = r#"{"cpu":"1"}"#,
                "created nodeclaim"
            );
        });
        let lines = capture.0.lock().expect("unpoisoned");
        assert_eq!(
            lines[0].to_string(),
            format!(
                concat!(
                    r#"{{"NodeClaim":{{"name":"default-abc"}},"commit":"{}","instance-types":"a, b","level":"INFO","#,
                    r#""logger":"controller","message":"created nodeclaim","requests":{{"cpu":"1"}},"time":"2026-03-01T10:00:00.500Z"}}"#
                ),
                COMMIT
            )
        );
    }

    #[test]
    fn what_a_watch_may_not_read_is_not_told_beside_the_controllers_own_word() {
        let capture = Capture::default();
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(directives("info"))).with(capture.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403");
            tracing::warn!(target: "kube_runtime::controller", "heard");
            tracing::info!(target: "karp::observe::watch", "heard");
            tracing::error!(target: "kube_runtime::watcher", "heard");
        });
        let lines = capture.0.lock().expect("unpoisoned");
        assert_eq!(lines.iter().map(|line| &line["message"]).collect::<Vec<_>>(), ["heard"; 3]);
    }

    #[test]
    fn reconcile_ids_look_like_uuids() {
        let id = reconcile_id();
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_ne!(id, reconcile_id());
    }
}
