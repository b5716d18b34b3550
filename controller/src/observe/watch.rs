//! One watch a kind: relists by itself, leaves out what nobody reads, and goes on past objects that cannot be read.

use std::any::Any;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Lookup, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Change;
use super::unread::{Aside, Guarded, Unread};

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
        let mut writer = Writer::<K>::new(());
        let reader = writer.as_reader();
        let known = writer.as_reader();
        let changes = self.changes.clone();
        self.run::<K>(kind, move |seen| {
            let name = match seen {
                Seen::Event(event) => {
                    writer.apply_watcher_event(&event);
                    match &event {
                        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => object.name_any(),
                        Event::Init | Event::InitDone => return,
                    }
                }
                Seen::Unread(unread) | Seen::Gone(unread) => {
                    // What it said before must not be acted upon any more.
                    let mut which = ObjectRef::<K>::new(unread.metadata.name.as_deref().unwrap_or_default());
                    which.namespace.clone_from(&unread.metadata.namespace);
                    if let Some(before) = known.get(&which) {
                        writer.apply_watcher_event(&Event::Delete((*before).clone()));
                    }
                    which.name
                }
            };
            // Nobody listening is not an error: the watches run before the controllers do.
            let _ = changes.send(change(name.into()));
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
        tokio::spawn(async move {
            let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    event = events.next() => event,
                };
                match event {
                    None => return,
                    Some(Err(error)) => tracing::warn!(kind, %error, "watch interrupted, trying again"),
                    Some(Ok(event)) => sink(sorter.sort(event)),
                }
            }
        });
    }
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
