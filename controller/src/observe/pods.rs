//! The pod cache: pods as the engine reads them, and nothing else of them, so that a big cluster stays small in memory.

use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::cluster::{Owner, Phase, Pod, PodKey, Shapes, Watched};
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::Change;
use super::watch::{Feed, Seen};

/// Holds what is known of pods; cheap to clone.
#[derive(Clone)]
pub struct PodCache {
    known: Arc<RwLock<Known>>,
    ready: watch::Receiver<bool>,
}

/// Pods, and those that could not be read.
type Known = Watched<PodKey, Result<Arc<Pod>, Unread>>;

/// A pod that could not be read.
#[derive(Clone)]
pub struct Unread {
    /// What cannot be understood, and where it is.
    pub why: String,
    /// Its UID.
    pub uid: Arc<str>,
    /// The node that it is bound to.
    pub node: Option<Arc<str>>,
    /// What its eviction needs; none where that cannot be read either.
    pub to_evict: Option<Arc<Pod>>,
}

impl PodCache {
    /// Returns a pod.
    pub fn get(&self, key: &PodKey) -> Option<Arc<Pod>> {
        self.read(|known| known.known().get(key)?.as_ref().ok().cloned())
    }

    /// Returns every pod, ordered by key.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.read(|known| known.known().values().flatten().cloned().collect())
    }

    /// Returns the pods that wait for a node.
    pub fn waiting(&self) -> Vec<Arc<Pod>> {
        self.read(|known| known.known().values().flatten().filter(|pod| pod.is_waiting()).cloned().collect())
    }

    /// Says whether a pod that could not be read is not bound to any node.
    pub fn is_any_unread_unbound(&self) -> bool {
        self.read(|known| unreadable(known).any(|(_, unread)| unread.node.is_none()))
    }

    /// Returns the pods that are bound to a node.
    pub fn on_node(&self, node: &str) -> Vec<Arc<Pod>> {
        let on_it = |pod: &&Arc<Pod>| pod.node.as_deref() == Some(node);
        self.read(|known| known.known().values().flatten().filter(on_it).cloned().collect())
    }

    /// Returns the pods that are bound to a node as its drain sees them: with those of which no more could be read than an eviction needs.
    pub fn to_drain(&self, node: &str) -> Vec<Arc<Pod>> {
        let leaves = |read: &Result<Arc<Pod>, Unread>| match read {
            Ok(pod) => Some(pod.clone()),
            Err(unread) => unread.to_evict.clone(),
        };
        let on_it = |pod: &Arc<Pod>| pod.node.as_deref() == Some(node);
        self.read(|known| known.known().values().filter_map(leaves).filter(on_it).collect())
    }

    /// Returns the pods on a node of which not even what an eviction needs could be read.
    pub fn obscure_on(&self, node: &str) -> Vec<PodKey> {
        let on_it =
            |(_, unread): &(&PodKey, &Unread)| unread.node.as_deref() == Some(node) && unread.to_evict.is_none();
        self.read(|known| unreadable(known).filter(on_it).map(|(key, _)| key.clone()).collect())
    }

    /// Returns the pods that could not be read.
    pub fn unreadable(&self) -> Vec<(PodKey, Unread)> {
        self.read(|known| unreadable(known).map(|(key, unread)| (key.clone(), unread.clone())).collect())
    }

    /// Returns the pods on a node that could not be read.
    pub fn unreadable_on(&self, node: &str) -> Vec<PodKey> {
        let on_it = |(_, unread): &(&PodKey, &Unread)| unread.node.as_deref() == Some(node);
        self.read(|known| unreadable(known).filter(on_it).map(|(key, _)| key.clone()).collect())
    }

    /// Waits until the cache was filled once; false when the watch ended before.
    pub async fn wait_until_ready(&self) -> bool {
        self.ready.clone().wait_for(|ready| *ready).await.is_ok()
    }

    fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        // The writer holds the lock over plain map operations only; what a panic there left is still a map.
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn unreadable(known: &Known) -> impl Iterator<Item = (&PodKey, &Unread)> {
    known.known().iter().filter_map(|(key, read)| Some((key, read.as_ref().err()?)))
}

/// Starts the watch of all pods.
pub fn start(feed: &Feed) -> PodCache {
    let known = Arc::<RwLock<Known>>::default();
    let (ready, waiting) = watch::channel(false);
    let cache = PodCache { known: known.clone(), ready: waiting };
    let changes = feed.changes.clone();
    let shapes = Shapes::default();
    let mut held = Vec::new();
    feed.run("Pod", move |seen| {
        let mut live = known.write().unwrap_or_else(PoisonError::into_inner);
        let event = match seen {
            Seen::Event(event) => event,
            Seen::Unread(unread) => {
                let key = key(&unread.metadata);
                let (why, uid) = (unread.why.to_string(), unread.metadata.uid.as_deref().unwrap_or_default().into());
                let unread = Err(Unread { why, uid, node: unread.node.clone(), to_evict: None });
                if live.is_listing() {
                    live.listed(key, unread);
                } else {
                    live.put(key, unread);
                }
                return;
            }
            Seen::Gone(unread) => {
                live.remove(&key(&unread.metadata));
                return;
            }
        };
        let touched = match &event {
            Event::Init => {
                live.list();
                held.clear();
                None
            }
            Event::InitDone => {
                let gone = live.done();
                drop(live);
                let _ = ready.send(true);
                let gone = gone.into_iter().filter_map(|(key, pod)| Some((key, pod.ok()?)));
                let gone = gone.map(|(key, pod)| {
                    let (node, moved) = (pod.node.clone(), stirs(&pod));
                    Change::Pod { key, node, pending: false, moved, pod: None }
                });
                gone.chain(std::mem::take(&mut held)).for_each(|change| {
                    let _ = changes.send(change);
                });
                return;
            }
            // told when the listing is whole: before, nobody would find the pod, nor hear of it again
            Event::InitApply(pod) => {
                let change = put(&mut live, &shapes, pod);
                // who begins to listen in the middle of a later listing has read what was known before it
                if (*ready.borrow() || changes.receiver_count() > 0) && is_news(&live, &change) {
                    held.push(change);
                }
                None
            }
            Event::Apply(pod) => Some(put(&mut live, &shapes, pod)),
            Event::Delete(pod) => {
                let key = key(&pod.metadata);
                let moved = live.remove(&key).and_then(Result::ok).is_none_or(|pod| stirs(&pod));
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).map(Arc::from);
                Some(Change::Pod { key, node, pending: false, moved, pod: None })
            }
        };
        drop(live);
        if let Some(change) = touched {
            let _ = changes.send(change);
        }
    });
    cache
}

fn key(metadata: &ObjectMeta) -> PodKey {
    PodKey::new(metadata.namespace.as_deref().unwrap_or("default"), metadata.name.as_deref().unwrap_or_default())
}

/// Puts a pod where it belongs and says what to announce; the first listing announces no moves, and a later one those that the watch has missed.
fn put(known: &mut Known, shapes: &Shapes, pod: &core::Pod) -> Change {
    let key = key(&pod.metadata);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).map(Arc::from);
    match Pod::sharing(shapes, pod) {
        Ok(read) => {
            let (pending, after, read) = (read.is_provisionable(), standing(&read), Arc::new(read));
            let first = known.known().is_empty();
            let stood = |before: &Result<Arc<Pod>, Unread>| before.as_ref().ok().map(|pod| standing(pod));
            let changed = if known.is_listing() {
                let before = known.listed(key.clone(), Ok(read.clone())).and_then(stood);
                !first && before != Some(after)
            } else {
                known.put(key.clone(), Ok(read.clone())).as_ref().and_then(stood) != Some(after)
            };
            let moved = changed && !is_daemons(&read);
            Change::Pod { key, node, pending, moved, pod: Some(read) }
        }
        Err(why) => {
            let why = why.to_string();
            let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
            let to_evict = Pod::to_evict(pod).ok().map(Arc::new);
            let unread = Unread { why: why.clone(), uid, node: node.clone(), to_evict };
            let said = |before: Option<&Result<Arc<Pod>, Unread>>| {
                before.and_then(|before| before.as_ref().err()).is_some_and(|before| before.why == why)
            };
            let said = if known.is_listing() {
                said(known.listed(key.clone(), Err(unread)))
            } else {
                said(known.put(key.clone(), Err(unread)).as_ref())
            };
            if !said {
                tracing::warn!(Pod.namespace = %key.namespace, Pod.name = %key.name, error = why, "pod cannot be read, ignoring it");
            }
            Change::Pod { key, node, pending: false, moved: false, pod: None }
        }
    }
}

/// Says whether a listing has a pod that was not known so before.
fn is_news(known: &Known, change: &Change) -> bool {
    let Change::Pod { key, pod, .. } = change else { return false };
    let before = known.known().get(key).and_then(|before| before.as_ref().ok());
    before.map(|before| &**before) != pod.as_deref()
}

/// Says whether a pod comes and goes with its node, and makes it neither busy nor quiet.
fn is_daemons(pod: &Pod) -> bool {
    pod.owner == Owner::DaemonSet
}

/// Says whether a node is busier with a pod than without: what has ended left it then.
fn stirs(pod: &Pod) -> bool {
    !is_daemons(pod) && pod.phase != Phase::Terminal
}

/// Returns what makes a pod's node busy or quiet: is it bound, has it ended, is it going.
fn standing(pod: &Pod) -> (bool, bool, bool) {
    (pod.node.is_some(), pod.phase == Phase::Terminal, pod.deletes_at.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, cpu: &str, node: Option<&str>) -> core::Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }],
            },
        }))
        .expect("a pod")
    }

    #[test]
    fn a_pod_that_cannot_be_read_is_set_aside_and_comes_back_when_it_can() {
        let mut known = Known::default();
        put(&mut known, &Shapes::default(), &pod("good", "1", None));
        put(&mut known, &Shapes::default(), &pod("bad", "one", None));
        assert_eq!((known.known().len(), unreadable(&known).count()), (2, 1));
        put(&mut known, &Shapes::default(), &pod("bad", "1", None));
        assert_eq!((known.known().len(), unreadable(&known).count()), (2, 0));
    }

    #[test]
    fn a_drain_sees_pods_of_which_it_can_read_enough() {
        let known = Arc::<RwLock<Known>>::default();
        let cache = PodCache { known: known.clone(), ready: watch::channel(true).1 };
        let mut odd = pod("odd", "one", Some("n"));
        odd.metadata.annotations = Some([("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned())].into());
        let mut obscure = pod("obscure", "1", Some("n"));
        let toleration = json!([{ "key": "a", "operator": "Exists", "effect": "Unheard" }]);
        obscure.spec.as_mut().expect("a spec").tolerations = serde_json::from_value(toleration).expect("tolerations");
        for pod in [&odd, &obscure, &pod("good", "1", Some("n")), &pod("elsewhere", "one", Some("m"))] {
            put(&mut known.write().expect("free"), &Shapes::default(), pod);
        }
        let names = |pods: Vec<PodKey>| pods.iter().map(|key| key.name.to_string()).collect::<Vec<_>>();
        let seen = cache.to_drain("n");
        assert_eq!(names(seen.iter().map(|pod| pod.key.clone()).collect()), ["good", "odd"]);
        assert!(seen[1].is_protected(jiff::Timestamp::UNIX_EPOCH), "its owner's wish was read");
        assert_eq!(names(cache.obscure_on("n")), ["obscure"]);
        assert_eq!(names(cache.unreadable_on("n")), ["obscure", "odd"], "disruption leaves both alone");
    }

    #[test]
    fn a_listing_tells_of_pods_that_were_not_known_so() {
        let mut known = Known::default();
        put(&mut known, &Shapes::default(), &pod("same", "1", Some("n")));
        put(&mut known, &Shapes::default(), &pod("bound", "1", None));
        known.list();
        let listed = [pod("same", "1", Some("n")), pod("bound", "1", Some("n")), pod("new", "1", None)];
        let news = listed.map(|pod| {
            let change = put(&mut known, &Shapes::default(), &pod);
            is_news(&known, &change)
        });
        assert_eq!(news, [false, true, true]);
    }

    #[test]
    fn daemons_and_pods_that_ended_long_ago_leave_no_node_quieter() {
        let read = |pod: &core::Pod| Pod::sharing(&Shapes::default(), pod).expect("it can be read");
        let (plain, mut daemon, mut ended) =
            (pod("p", "1", Some("n")), pod("d", "1", Some("n")), pod("e", "1", Some("n")));
        let owner =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        daemon.metadata.owner_references = serde_json::from_value(owner).expect("owners");
        ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        let came = |pod: &core::Pod| put(&mut Known::default(), &Shapes::default(), pod);
        let moved = [&plain, &daemon].map(|pod| matches!(came(pod), Change::Pod { moved: true, .. }));
        assert_eq!(moved, [true, false], "nor busier when they come");
        assert_eq!([plain, daemon, ended].map(|pod| stirs(&read(&pod))), [true, false, false]);
    }

    #[test]
    fn binding_moves_a_pod_and_listing_does_not() {
        let mut known = Known::default();
        let moved = |change: Change| matches!(change, Change::Pod { moved: true, .. });
        known.list();
        assert!(!moved(put(&mut known, &Shapes::default(), &pod("a", "1", None))));
        known.done();
        assert!(!moved(put(&mut known, &Shapes::default(), &pod("a", "1", None))));
        assert!(moved(put(&mut known, &Shapes::default(), &pod("a", "1", Some("n")))));
        assert!(!moved(put(&mut known, &Shapes::default(), &pod("a", "1", Some("n")))));
        // a watch that was cut has missed what came, went and was bound meanwhile
        put(&mut known, &Shapes::default(), &pod("b", "1", None));
        put(&mut known, &Shapes::default(), &pod("c", "1", Some("n")));
        known.list();
        assert!(!moved(put(&mut known, &Shapes::default(), &pod("a", "1", Some("n")))));
        assert!(moved(put(&mut known, &Shapes::default(), &pod("b", "1", Some("n")))));
        assert!(moved(put(&mut known, &Shapes::default(), &pod("d", "1", Some("n")))));
        assert_eq!(known.done().into_keys().map(|key| key.name.to_string()).collect::<Vec<_>>(), ["c"]);
    }
}
