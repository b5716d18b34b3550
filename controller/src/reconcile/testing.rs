//! An API server in this process, and all that a controller has beside it: for tests of what reconcilers ask, write and tell.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use http::{Request, Response};
use karp_domain::api::labels;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::health::Health;
use super::overlays::Overlays;
use crate::cloud::{Unavailable, simulated::Simulated};
use crate::observe::Stores;
use crate::ops::events::Events;
use crate::ops::metrics::Metrics;
use crate::options::Options;

/// How long something is waited for that is to happen.
const SOON: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Shell {
    #[command(flatten)]
    options: Options,
}

/// An API server that has objects, whatever their namespace, by `nodes/n`; nobody checks what is written. Its watches tell of nothing: caches are
/// as it was when they were filled.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// What was asked, as `GET nodes/n` or `GET pods?spec.nodeName=n`.
    asked: Vec<String>,
    /// Answers to what is asked so, in turn; without a code, there is none.
    answers: Vec<(String, Option<u16>, Value)>,
    /// What is never answered.
    stalled: Vec<String>,
}

/// Returns a claim of class `default`; its name is its UID too.
pub fn claim(name: &str) -> Value {
    let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name, "uid": name },
        "spec": { "requirements": [], "nodeClassRef": class },
    })
}

impl Server {
    /// Has these objects.
    pub fn of(objects: impl IntoIterator<Item = Value>) -> Self {
        let server = Self::default();
        objects.into_iter().for_each(|object| server.put(object));
        server
    }

    /// Makes or replaces an object.
    pub fn put(&self, object: Value) {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).expect("kind and name").to_owned();
        let kind = text("/kind").to_lowercase();
        let plural = if kind.ends_with('s') { "es" } else { "s" };
        let key = format!("{kind}{plural}/{}", text("/metadata/name"));
        self.state(|state| state.objects.insert(key, object));
    }

    /// Takes an object away.
    pub fn remove(&self, key: &str) {
        self.state(|state| state.objects.remove(key));
    }

    /// Returns an object.
    pub fn get(&self, key: &str) -> Value {
        self.state(|state| state.objects.get(key).cloned().unwrap_or_default())
    }

    /// Answers something that will be asked so, once; without a code, the connection breaks.
    pub fn answer(&self, asked: &str, code: Option<u16>, body: Value) {
        self.state(|state| state.answers.push((asked.to_owned(), code, body)));
    }

    /// Leaves whatever is asked so without an answer.
    pub fn stall(&self, asked: &str) {
        self.state(|state| state.stalled.push(asked.to_owned()));
    }

    /// Counts how often something was asked.
    pub fn asked(&self, what: &str) -> usize {
        self.state(|state| state.asked.iter().filter(|asked| *asked == what).count())
    }

    /// Returns which question something was, if it was asked.
    pub fn turn(&self, what: &str) -> Option<usize> {
        self.state(|state| state.asked.iter().position(|asked| asked == what))
    }

    /// Waits for an event about an object, and returns what it says.
    pub async fn told(&self, reason: &str, about: &str) -> String {
        let found = async {
            loop {
                let event = self.state(|state| {
                    let mut events = state.objects.iter().filter(|(key, _)| key.starts_with("events/"));
                    let is = |event: &Value| event["reason"] == reason && event["regarding"]["name"] == about;
                    events
                        .find(|(_, event)| is(event))
                        .map(|(_, event)| event["note"].as_str().unwrap_or_default().to_owned())
                });
                match event {
                    Some(note) => return note,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(SOON, found).await.unwrap_or_else(|_| panic!("no event {reason} about {about}"))
    }

    /// Returns what a controller has whose API server this is, with full caches.
    pub async fn context(&self) -> Arc<Context> {
        let client = self.client();
        let stores = Stores::start(&client, &CancellationToken::new());
        assert!(tokio::time::timeout(SOON, stores.synced()).await.expect("in time"), "the caches are filled");
        Arc::new(Context {
            events: Events::new(client.clone(), None),
            evictor: client.clone(),
            stores,
            cloud: Arc::new(Simulated::new(client.clone())),
            client,
            unavailable: Unavailable::new(None),
            metrics: Arc::new(Metrics::new()),
            ca_bundle: String::new(),
            overlays: Overlays::new(false),
            options: Shell::parse_from(["karp", "--cloud=simulated"]).options,
            provision: Default::default(),
            replan: Default::default(),
            rests: Default::default(),
            settled: Default::default(),
            batches: Default::default(),
            disrupt: Default::default(),
            plans: Default::default(),
            planning: Default::default(),
            running: Default::default(),
            health: Health::default(),
            buffers: Default::default(),
            unreadable: Default::default(),
            evictions: Default::default(),
            drained: Default::default(),
            written: Default::default(),
            assumed: Default::default(),
            market: Default::default(),
        })
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let query = parts.uri.query().unwrap_or_default().to_owned();
                if query.contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let field = query.split('&').find_map(|part| part.strip_prefix("fieldSelector="));
                let field = field.map(|field| format!("?{}", field.replace("%3D", "="))).unwrap_or_default();
                let asked = format!("{} {}{field}", parts.method, key(parts.uri.path()));
                if server.state(|state| state.stalled.contains(&asked)) {
                    std::future::pending::<()>().await;
                }
                let body = body.collect_bytes().await?;
                let (code, answer) = server.respond(&asked, serde_json::from_slice(&body).unwrap_or_default())?;
                let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        Client::new(service, "default")
    }

    fn respond(&self, asked: &str, body: Value) -> io::Result<(u16, Value)> {
        self.state(|state| {
            state.asked.push(asked.to_owned());
            if let Some(at) = state.answers.iter().position(|(which, ..)| which == asked) {
                let (_, code, body) = state.answers.remove(at);
                return Ok((code.ok_or(io::ErrorKind::ConnectionReset)?, body));
            }
            let (method, key) = asked.split_once(' ').expect("a method and a key");
            let mut parts = key.split('/');
            let (kind, name) = (parts.next().unwrap_or_default(), parts.next());
            let Some(name) = name else {
                let objects = &mut state.objects;
                if method == "POST" {
                    let key = format!("{kind}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                    objects.insert(key, body.clone());
                    return Ok((201, body));
                }
                let (kind, field) =
                    kind.split_once("?spec.nodeName=").map_or((kind, None), |(kind, node)| (kind, Some(node)));
                let of_kind = objects.iter().filter(|(key, _)| key.split('/').next() == Some(kind));
                let items = of_kind.filter(|(_, it)| field.is_none_or(|node| it["spec"]["nodeName"] == node));
                let items: Vec<&Value> = items.map(|(_, object)| object).collect();
                return Ok((200, json!({ "metadata": { "resourceVersion": "1" }, "items": items })));
            };
            let Some(object) = state.objects.get_mut(&format!("{kind}/{name}")) else {
                return Ok((404, status(404, "NotFound")));
            };
            if method == "PATCH" {
                merge(object, body);
            }
            Ok((200, object.clone()))
        })
    }

    fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().expect("nobody panicked"))
    }
}

/// The API server's words for a refusal.
pub fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason })
}

/// What is left of a path without the API's group and version, and the namespace.
fn key(path: &str) -> String {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let mut rest = &parts[if parts[0] == "api" { 2 } else { 3 }..];
    if rest[0] == "namespaces" && rest.len() > 2 {
        rest = &rest[2..];
    }
    rest.join("/")
}

/// Merges as RFC 7396 has it.
fn merge(object: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *object = patch;
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in patch {
        if value.is_null() {
            object.as_object_mut().expect("an object").remove(&field);
        } else {
            merge(&mut object[field], value);
        }
    }
}
