//! Objects that the API server admits and that cannot be read: set aside with the field to blame, told of, and taken back once they can.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::api::conditions::Condition;
use karp_domain::api::labels;
use karp_domain::cluster::Unreadable;
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_path_to_error::Segment;

/// Fields that are left out of one object before it counts as beyond mending: more are wrong with it than a slip.
const MOST_LEFT_OUT: usize = 16;

/// An object, or what is known of one that cannot be read; so one of them never is an error of a whole list.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Box<Broken<K>>>);

/// An object that cannot be read, with the stand-in by which the rest of it is still looked after.
#[derive(Clone, Debug)]
pub struct Broken<K> {
    /// Why, and whose.
    pub unread: Arc<Unread>,
    /// The object without the fields that cannot be read, where it must stay known: it is going, or it has an instance.
    pub stand_in: Option<K>,
}

/// What is known of an object that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unread {
    /// The object, the field to blame, and what is wrong with it.
    pub why: Unreadable,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its conditions, as far as they can be read.
    pub conditions: Vec<Condition>,
    /// The node that it is bound to; pods only.
    pub node: Option<Arc<str>>,
    /// Its node class is another provider's: it is none of ours.
    pub foreign: bool,
    api_version: String,
}

impl Unread {
    /// Returns a reference to it, for events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.why.kind.clone()),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }
}

impl<K> Guarded<K> {
    /// Returns the object, or the stand-in of one that cannot be read and must stay known.
    pub fn or_stand_in(self) -> Option<K> {
        self.0.map_or_else(|broken| broken.stand_in, Some)
    }
}

impl<'de, K: Resource<DynamicType = ()> + DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Value::deserialize(deserializer)?;
        match K::deserialize(&raw) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(_) => broken(&raw).map(|broken| Self(Err(Box::new(broken)))).map_err(D::Error::custom),
        }
    }
}

/// Finds what is wrong with an object, and reads the rest of it; an error when it has no metadata.
fn broken<K: Resource<DynamicType = ()> + DeserializeOwned>(raw: &Value) -> serde_json::Result<Broken<K>> {
    let mut metadata = ObjectMeta::deserialize(&raw["metadata"])?;
    metadata.managed_fields = None;
    let (why, mended) = mend::<K>(raw, &metadata);
    let conditions = raw["status"]["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.filter_map(|condition| Condition::deserialize(condition).ok()).collect();
    let instance = raw["status"]["providerID"].as_str().is_some_and(|id| !id.is_empty());
    let stays = instance || metadata.deletion_timestamp.is_some();
    let node = raw["spec"]["nodeName"].as_str().map(Arc::from);
    let group = ["/spec/template/spec/nodeClassRef/group", "/spec/nodeClassRef/group"];
    let group = group.iter().find_map(|path| raw.pointer(path)?.as_str());
    let foreign = group.is_some_and(|group| !labels::is_ours(group));
    let unread = Unread { why, metadata, conditions, node, foreign, api_version: K::api_version(&()).into_owned() };
    Ok(Broken { unread: Arc::new(unread), stand_in: mended.filter(|_| stays) })
}

/// Names the first field that cannot be read, and reads the object without it and others like it, if that can be done.
fn mend<K: Resource<DynamicType = ()> + DeserializeOwned>(
    raw: &Value,
    metadata: &ObjectMeta,
) -> (Unreadable, Option<K>) {
    let name = match (&metadata.namespace, metadata.name.as_deref().unwrap_or_default()) {
        (Some(namespace), name) => format!("{namespace}/{name}"),
        (None, name) => name.to_owned(),
    };
    let report = |field: &str, problem: &str| Unreadable::new(&K::kind(&()), &name, field, problem);
    let (mut rest, mut first) = (raw.clone(), None);
    for _ in 0..MOST_LEFT_OUT {
        match serde_path_to_error::deserialize::<_, K>(&rest) {
            Ok(object) => return (first.unwrap_or_else(|| report(".", "it cannot be read")), Some(object)),
            Err(error) => {
                let path: Vec<&Segment> = error.path().iter().collect();
                first.get_or_insert_with(|| report(&error.path().to_string(), &error.inner().to_string()));
                if !leave_out(&mut rest, &path) {
                    break;
                }
            }
        }
    }
    (first.unwrap_or_else(|| report(".", "it cannot be read")), None)
}

/// Takes the field at a path away; false when there is none.
fn leave_out(object: &mut Value, path: &[&Segment]) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    let parent = parents.iter().try_fold(object, |at, segment| match segment {
        Segment::Map { key } => at.get_mut(key),
        Segment::Seq { index } => at.get_mut(*index),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    match (parent, last) {
        (Some(Value::Object(fields)), Segment::Map { key }) => fields.remove(key).is_some(),
        (Some(Value::Array(items)), Segment::Seq { index }) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Guarded<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|broken| &broken.unread.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(broken) => &mut Arc::make_mut(&mut broken.unread).metadata,
        }
    }
}

/// Reads an object's metadata as that of its kind, so that its status can be written although the object cannot be read.
pub fn partial<K>(metadata: &ObjectMeta) -> PartialObjectMeta<K> {
    PartialObjectMeta { types: None, metadata: metadata.clone(), _phantom: std::marker::PhantomData }
}

type Key = (String, String);

/// Holds what is known of objects that cannot be read; cheap to clone.
#[derive(Clone, Default)]
pub struct Aside(Arc<RwLock<BTreeMap<Key, Arc<Unread>>>>);

impl Aside {
    /// Returns all, ordered by kind and name.
    pub fn all(&self) -> Vec<Arc<Unread>> {
        self.read().values().cloned().collect()
    }

    /// Says whether a cluster-scoped object cannot be read.
    pub fn has(&self, kind: &str, name: &str) -> bool {
        self.read().contains_key(&(kind.to_owned(), name.to_owned()))
    }

    /// Keeps one; says whether anything changed.
    pub fn put(&self, unread: &Arc<Unread>) -> bool {
        let key = (unread.why.kind.clone(), unread.why.name.clone());
        self.write().insert(key, unread.clone()).is_none_or(|before| before != *unread)
    }

    /// Forgets one that can be read, or is gone; says whether it was there.
    pub fn forget(&self, kind: &str, metadata: &ObjectMeta) -> bool {
        if self.read().is_empty() {
            return false;
        }
        let name = metadata.name.as_deref().unwrap_or_default();
        let name = metadata.namespace.as_ref().map_or_else(|| name.to_owned(), |space| format!("{space}/{name}"));
        self.write().remove(&(kind.to_owned(), name)).is_some()
    }

    /// Takes a listing of a kind for all that there is of it; says whether anything changed.
    pub fn replace(&self, kind: &str, found: Vec<Arc<Unread>>) -> bool {
        let mut all = self.write();
        let before: Vec<Arc<Unread>> =
            all.iter().filter(|((of, _), _)| of == kind).map(|(_, unread)| unread.clone()).collect();
        all.retain(|(of, _), _| of != kind);
        let changed = before != found;
        all.extend(found.into_iter().map(|unread| ((unread.why.kind.clone(), unread.why.name.clone()), unread)));
        changed
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Key, Arc<Unread>>> {
        // Writers hold the lock over plain map operations only; what a panic there left is still a map.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Key, Arc<Unread>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{NodeClaim, NodePool};
    use serde_json::json;

    use super::*;

    fn read<K: Resource<DynamicType = ()> + DeserializeOwned>(object: Value) -> Result<K, Box<Broken<K>>> {
        serde_json::from_value::<Guarded<K>>(object).expect("it has metadata").0
    }

    fn pool(limits: &Value) -> Value {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "odd", "uid": "u1" },
            "spec": { "limits": limits, "template": { "spec": {
                "requirements": [],
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            } } },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        })
    }

    fn claim(requests: &Value, status: &Value) -> Value {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "odd", "uid": "u2" },
            "spec": {
                "requirements": [],
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "resources": { "requests": requests },
            },
            "status": status,
        })
    }

    #[test]
    fn the_field_is_named_and_what_is_known_is_kept() {
        assert!(read::<NodePool>(pool(&json!({ "cpu": "10" }))).is_ok());
        let broken = read::<NodePool>(pool(&json!({ "cpu": "1e60" }))).expect_err("too much");
        let unread = &broken.unread;
        assert_eq!((&*unread.why.kind, &*unread.why.name, &*unread.why.field), ("NodePool", "odd", "spec.limits.cpu"));
        assert!(unread.why.problem.contains("1e60"), "{}", unread.why);
        assert_eq!(unread.conditions.len(), 1);
        assert_eq!(unread.reference().uid.as_deref(), Some("u1"));
        assert!(broken.stand_in.is_none(), "a pool that stays is not acted upon");
        assert!(!unread.foreign);
        let mut theirs = pool(&json!({ "cpu": "1e60" }));
        theirs["spec"]["template"]["spec"]["nodeClassRef"]["group"] = json!("eks.amazonaws.com");
        assert!(read::<NodePool>(theirs).expect_err("too much").unread.foreign);
    }

    #[test]
    fn what_goes_or_has_an_instance_stays_known_without_what_cannot_be_read() {
        let mut going = pool(&json!({ "cpu": "1e60", "memory": "1e70", "nodes": "3" }));
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let left = read::<NodePool>(going).expect_err("too much").stand_in.expect("it must be let go");
        let limits = left.spec.limits.expect("limits");
        assert_eq!(limits.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(), ["nodes"]);

        let odd = json!({ "cpu": "1e60" });
        assert!(read::<NodeClaim>(claim(&odd, &json!({}))).expect_err("too much").stand_in.is_none());
        let launched = json!({ "providerID": "aws:///us-east-1a/i-1" });
        let kept =
            read::<NodeClaim>(claim(&odd, &launched)).expect_err("too much").stand_in.expect("it has an instance");
        assert_eq!(kept.status.and_then(|status| status.provider_id).as_deref(), Some("aws:///us-east-1a/i-1"));
    }

    #[test]
    fn an_object_with_a_form_of_its_own_is_reported_and_not_mended() {
        let mut shapeless = pool(&json!({}));
        shapeless["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        shapeless["spec"] = json!("nothing");
        let broken = read::<NodePool>(shapeless).expect_err("no spec");
        assert_eq!(broken.unread.why.field, "spec");
        assert!(broken.stand_in.is_none());
    }

    #[test]
    fn a_listing_replaces_what_was_known_of_its_kind() {
        let aside = Aside::default();
        let odd = read::<NodePool>(pool(&json!({ "cpu": "1e60" }))).expect_err("too much").unread;
        let other = read::<NodeClaim>(claim(&json!({ "cpu": "1e60" }), &json!({}))).expect_err("too much").unread;
        assert!(aside.put(&odd) && aside.put(&other) && !aside.put(&odd));
        assert!(aside.has("NodePool", "odd") && aside.has("NodeClaim", "odd"));
        assert!(!aside.replace("NodePool", vec![odd]));
        assert!(
            aside.replace("NodePool", Vec::new()) && !aside.has("NodePool", "odd") && aside.has("NodeClaim", "odd")
        );
        assert!(aside.forget("NodeClaim", &other.metadata) && !aside.forget("NodeClaim", &other.metadata));
    }
}
