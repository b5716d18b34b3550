//! One watch a kind: relists by itself, leaves out what nobody reads, and goes on past objects that cannot be read.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Lookup, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Change;

/// Starts watches that announce what they see.
pub struct Feed {
    /// Where to watch.
    pub client: Client,
    /// When to end.
    pub stop: CancellationToken,
    /// Where to announce.
    pub changes: broadcast::Sender<Change>,
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
        let changes = self.changes.clone();
        self.run::<K>(kind, move |event| {
            writer.apply_watcher_event(&event);
            if let Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) = &event {
                // Nobody listening is not an error: the watches run before the controllers do.
                let _ = changes.send(change(object.name_any().into()));
            }
        });
        reader
    }

    /// Runs a watch that hands its events, stripped and readable, to `sink`.
    pub fn run<K>(&self, kind: &'static str, mut sink: impl FnMut(Event<K>) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        // The guard makes an object that cannot be read an item of its own instead of an error of the whole list.
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        let stop = self.stop.clone();
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
                    Some(Ok(event)) => {
                        if let Some(event) = readable(kind, event) {
                            sink(event);
                        }
                    }
                }
            }
        });
    }
}

/// Unwraps the guard: an object that cannot be read is reported and left out.
fn readable<K: Resource<DynamicType = ()>>(kind: &str, event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let strip = |guard: DeserializeGuard<K>| match guard.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(kind, name, error = %invalid.error, "object cannot be read, leaving it out");
            None
        }
    };
    match event {
        Event::Apply(guard) => strip(guard).map(Event::Apply),
        Event::Delete(guard) => strip(guard).map(Event::Delete),
        Event::InitApply(guard) => strip(guard).map(Event::InitApply),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}
