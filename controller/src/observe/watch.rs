//! One watch a kind: relists by itself, leaves out what nobody reads, and goes on past objects that cannot be read.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Lookup, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Change;
use super::unread::{Aside, Guarded, Unread};

/// A watch is asked for so long, in seconds, and then for its next part: five seconds later one that has not ended is known to be dead, as when a
/// load balancer's target went away without a word. Nothing else tells: the API server need not say anything while nothing changes.
const WATCH: u32 = 60;
/// The kind that is done without where a role does not let it be read.
const SPARED: &str = "LimitRange";

/// Starts watches that announce what they see.
pub struct Feed {
    /// Where to watch.
    pub client: Client,
    /// When to end.
    pub stop: CancellationToken,
    /// Where to announce.
    pub changes: broadcast::Sender<Change>,
    /// Where what cannot be read is kept.
    pub aside: Aside,
}

/// What a watch has seen.
pub enum Seen<K> {
    /// An object that can be read, or a step of a listing.
    Event(Event<K>),
    /// An object that cannot be read, and is not known any more.
    Unread(Arc<Unread>),
    /// One that could not be read has gone.
    Gone(Arc<Unread>),
}

impl Feed {
    /// Starts a watch of a whole kind into a store.
    pub fn store<K>(&self, kind: &'static str, change: impl Fn(Arc<str>) -> Change + Send + 'static) -> Store<K>
    where
        K: Resource<DynamicType = ()>
            + Lookup<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let mut keeper = Keeper::<K>::new();
        let reader = keeper.reader.clone();
        let changes = self.changes.clone();
        self.run::<K>(kind, move |seen| {
            for name in keeper.take(seen) {
                // Nobody listening is not an error: the watches run before the controllers do.
                let _ = changes.send(change(name.into()));
            }
        });
        reader
    }

    /// Runs a watch that hands what it has seen to `sink`.
    pub fn run<K>(&self, kind: &'static str, mut sink: impl FnMut(Seen<K>) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        // The guard makes an object that cannot be read an item of its own instead of an error of the whole list.
        let api: Api<Guarded<K>> = Api::all(self.client.clone());
        let stop = self.stop.clone();
        let mut sorter = Sorter { kind, aside: self.aside.clone(), changes: self.changes.clone(), listing: Vec::new() };
        let mut complaints = Complaints { spared: kind == SPARED, told: false };
        tokio::spawn(async move {
            let mut events = pin!(watcher(api, watcher::Config::default().timeout(WATCH)).default_backoff());
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    event = events.next() => event,
                };
                match event {
                    None => return,
                    Some(Err(error)) if complaints.is_news(&error) => {
                        tracing::warn!(kind, %error, "watch interrupted, trying again");
                    }
                    Some(Err(error)) => tracing::debug!(kind, %error, "watch interrupted as before, trying again"),
                    Some(Ok(event)) => {
                        if matches!(event, Event::InitDone) {
                            complaints.told = false;
                        }
                        sink(sorter.sort(event));
                    }
                }
            }
        });
    }
}

/// Which failures of a watch are told: all, but that a kind that is done without may not be read only once.
struct Complaints {
    /// The kind is done without.
    spared: bool,
    /// It was told that the kind may not be read.
    told: bool,
}

impl Complaints {
    /// Says whether a failure is to be told.
    fn is_news(&mut self, error: &watcher::Error) -> bool {
        let known = self.spared && is_forbidden(error);
        let told = std::mem::replace(&mut self.told, known);
        !(known && told)
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}

/// Keeps a store as a watch has seen it.
struct Keeper<K: Lookup<DynamicType = ()> + Clone + 'static> {
    writer: Writer<K>,
    reader: Store<K>,
}

impl<K> Keeper<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    fn new() -> Self {
        let writer = Writer::<K>::new(());
        let reader = writer.as_reader();
        Self { writer, reader }
    }

    /// Takes what a watch has seen; answers the names of the objects that are others now, or gone. What a listing has is not in the store before
    /// the listing is whole: told of earlier, nobody would find it there, nor hear of it again.
    fn take(&mut self, seen: Seen<K>) -> Vec<String> {
        match seen {
            Seen::Event(Event::InitDone) => self.listed(),
            Seen::Event(event) => {
                self.writer.apply_watcher_event(&event);
                match event {
                    Event::Apply(object) | Event::Delete(object) => vec![object.name_any()],
                    Event::Init | Event::InitApply(_) | Event::InitDone => Vec::new(),
                }
            }
            Seen::Unread(unread) | Seen::Gone(unread) => {
                // What it said before must not be acted upon any more.
                let mut which = ObjectRef::<K>::new(unread.metadata.name.as_deref().unwrap_or_default());
                which.namespace.clone_from(&unread.metadata.namespace);
                if let Some(before) = self.reader.get(&which) {
                    self.writer.apply_watcher_event(&Event::Delete((*before).clone()));
                }
                vec![which.name]
            }
        }
    }

    /// A listing is whole: answers what it has that was not known so, and what was known and is not in it.
    fn listed(&mut self) -> Vec<String> {
        let by_key = |object: Arc<K>| (ObjectRef::<K>::from(&*object), object);
        let mut before: HashMap<ObjectRef<K>, Arc<K>> = self.reader.state().into_iter().map(by_key).collect();
        self.writer.apply_watcher_event(&Event::InitDone);
        let mut changed = Vec::new();
        for object in self.reader.state() {
            let known = before.remove(&ObjectRef::<K>::from(&*object));
            if known.is_none_or(|known| !is_same(known.meta(), object.meta())) {
                changed.push(object.name_any());
            }
        }
        changed.extend(before.into_values().map(|gone| gone.name_any()));
        changed
    }
}

/// Says whether two readings are of one object in one version.
fn is_same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.uid == other.uid && one.resource_version == other.resource_version
}

/// Tells what can be read from what cannot.
struct Sorter {
    kind: &'static str,
    aside: Aside,
    changes: broadcast::Sender<Change>,
    /// What could not be read in a listing that has not ended.
    listing: Vec<Arc<Unread>>,
}

impl Sorter {
    fn sort<K: Resource<DynamicType = ()> + 'static>(&mut self, event: Event<Guarded<K>>) -> Seen<K> {
        let (seen, changed) = match event {
            Event::Init => {
                self.listing.clear();
                (Seen::Event(Event::Init), false)
            }
            Event::InitApply(Guarded(Ok(object))) => (Seen::Event(Event::InitApply(stripped(object))), false),
            Event::InitApply(Guarded(Err(broken))) => {
                self.listing.push(broken.unread.clone());
                (
                    broken
                        .stand_in
                        .map_or(Seen::Unread(broken.unread), |it| Seen::Event(Event::InitApply(stripped(it)))),
                    false,
                )
            }
            Event::InitDone => {
                let found = std::mem::take(&mut self.listing);
                (Seen::Event(Event::InitDone), self.aside.replace(self.kind, found))
            }
            Event::Apply(Guarded(Ok(object))) => {
                let changed = self.aside.forget(self.kind, object.meta());
                (Seen::Event(Event::Apply(stripped(object))), changed)
            }
            Event::Apply(Guarded(Err(broken))) => {
                let changed = self.aside.put(&broken.unread);
                (
                    broken.stand_in.map_or(Seen::Unread(broken.unread), |it| Seen::Event(Event::Apply(stripped(it)))),
                    changed,
                )
            }
            Event::Delete(Guarded(read)) => {
                let metadata = read.as_ref().map_or_else(|broken| &broken.unread.metadata, Resource::meta);
                let changed = self.aside.forget(self.kind, metadata);
                let seen = match read {
                    Ok(object) => Seen::Event(Event::Delete(stripped(object))),
                    Err(broken) => Seen::Gone(broken.unread),
                };
                (seen, changed)
            }
        };
        if changed {
            let _ = self.changes.send(Change::Unread);
        }
        seen
    }
}

/// Leaves out what nobody reads.
fn stripped<K: Resource<DynamicType = ()> + 'static>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    // a kubelet lists up to fifty, each with its names
    let node = (&mut object as &mut dyn Any).downcast_mut::<Node>();
    if let Some(status) = node.and_then(|node| node.status.as_mut()) {
        status.images = None;
    }
    object
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn node(name: &str, version: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.uid = Some(name.to_owned());
        node.metadata.resource_version = Some(version.to_owned());
        node
    }

    /// Takes an event; answers what is told, each with the version that is found then.
    fn take(keeper: &mut Keeper<Node>, event: Event<Node>) -> Vec<(String, Option<String>)> {
        let mut told = keeper.take(Seen::Event(event));
        told.sort();
        let found = |name: &str| keeper.reader.get(&ObjectRef::new(name));
        let version = |name: &str| found(name).and_then(|node| node.metadata.resource_version.clone());
        told.into_iter().map(|name| (name.clone(), version(&name))).collect()
    }

    #[test]
    fn that_a_kind_which_is_done_without_may_not_be_read_is_told_once() {
        let failed = |code: u16| {
            let status = json!({ "code": code, "message": "no", "reason": "" });
            watcher::Error::InitialListFailed(kube::Error::Api(serde_json::from_value(status).expect("a status")))
        };
        let mut spared = Complaints { spared: true, told: false };
        assert_eq!(
            [403, 403, 403, 503, 503, 403].map(|code| spared.is_news(&failed(code))),
            [true, false, false, true, true, true]
        );
        let mut needed = Complaints { spared: false, told: false };
        assert_eq!([403, 403].map(|code| needed.is_news(&failed(code))), [true, true]);
    }

    #[tokio::test]
    async fn a_watch_that_nothing_is_heard_of_is_known_to_be_dead_within_a_minute_or_so() {
        let (say, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let say = say.clone();
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                if query.contains("watch=true") {
                    say.send(query).expect("somebody listens");
                    std::future::pending::<()>().await;
                }
                let list = json!({ "kind": "NodeList", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [] });
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let feed = Feed {
            client: Client::new(service, "default"),
            stop: CancellationToken::new(),
            changes: broadcast::channel(16).0,
            aside: Aside::default(),
        };
        let _nodes: Store<Node> = feed.store("Node", Change::Node);
        let asked = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await.expect("in time");
        let asked = asked.expect("a watch");
        assert!(asked.contains("timeoutSeconds=60"), "{asked}");
    }

    #[test]
    fn what_a_listing_has_is_told_when_it_is_found_and_so_is_what_it_lacks() {
        let mut keeper = Keeper::<Node>::new();
        let found = |name: &str, version: &str| (name.to_owned(), Some(version.to_owned()));
        take(&mut keeper, Event::Init);
        for name in ["stays", "changes", "goes"] {
            assert!(take(&mut keeper, Event::InitApply(node(name, "1"))).is_empty());
        }
        let first = take(&mut keeper, Event::InitDone);
        assert_eq!(first, [found("changes", "1"), found("goes", "1"), found("stays", "1")]);
        assert_eq!(take(&mut keeper, Event::Apply(node("stays", "2"))), [found("stays", "2")]);

        // the watch was cut, and has missed what happened meanwhile
        take(&mut keeper, Event::Init);
        for (name, version) in [("stays", "2"), ("changes", "3"), ("comes", "4")] {
            assert!(take(&mut keeper, Event::InitApply(node(name, version))).is_empty(), "nobody would find it yet");
        }
        let gone = ("goes".to_owned(), None);
        assert_eq!(take(&mut keeper, Event::InitDone), [found("changes", "3"), found("comes", "4"), gone]);
        assert_eq!(take(&mut keeper, Event::Delete(node("comes", "5"))), [("comes".to_owned(), None)]);
    }
}
