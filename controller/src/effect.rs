//! What the controllers do to the API server, each effect so that it may be repeated.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::api::{NodeClaim, labels};
use karp_domain::cluster::{Pod as ReadPod, PodKey};
use karp_domain::eviction::{self, Answer};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::observe::unread::Guarded;

/// The name under which karp writes fields.
pub const FIELD_MANAGER: &str = "karpenter";
/// The value of the label that keeps load balancers away, where karp set it (Karpenter's).
const KEPT_OFF: &str = "karpenter";
/// Tries of a read-change-write of one node; each loses only to another writer in the same moment.
const WRITE_TRIES: usize = 5;

/// One change to the cluster.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Make a claim.
    CreateNodeClaim(Box<NodeClaim>),
    /// Ask that a claim ends; its finalizer drains and terminates.
    DeleteNodeClaim {
        /// Name.
        name: Arc<str>,
        /// UID: another claim of the same name is not meant.
        uid: Arc<str>,
    },
    /// Keep new pods off a node.
    Taint(Which),
    /// Keep new pods and load balancers off a node that goes for certain.
    Retire(Which),
    /// Let new pods come again, and load balancers that karp kept off.
    Untaint(Which),
    /// Tell kube-scheduler where a pod was planned.
    Nominate {
        /// The pod.
        pod: PodKey,
        /// Its UID.
        uid: Arc<str>,
        /// Name of the node.
        node: Arc<str>,
    },
}

/// A node to be written.
#[derive(Clone, Debug)]
pub struct Which {
    /// Its name.
    pub name: Arc<str>,
    /// The node as the watch shows it, if it does: it need not be read where that is to be changed.
    pub seen: Option<Arc<Node>>,
}

/// Says whether an effect changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did.
    Done,
    /// It was so already, or the object is gone.
    Nothing,
}

/// Applies one effect.
pub async fn apply(client: &Client, effect: &Effect) -> kube::Result<Outcome> {
    match effect {
        Effect::CreateNodeClaim(claim) => {
            let created = Api::all(client.clone()).create(&posted(), claim.as_ref()).await;
            unless(created, |status| status.is_already_exists())
        }
        Effect::DeleteNodeClaim { name, uid } => delete::<NodeClaim>(client, name, uid).await,
        Effect::Taint(node) => edit(client, node, |node| disruption(node, Disruption::Tainted)).await,
        Effect::Retire(node) => edit(client, node, |node| disruption(node, Disruption::Retired)).await,
        Effect::Untaint(node) => edit(client, node, |node| disruption(node, Disruption::Over)).await,
        Effect::Nominate { pod, uid, node } => nominate(client, pod, uid, node).await,
    }
}

fn posted() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Takes an API error of a kind as "nothing to do".
fn unless<T>(result: kube::Result<T>, harmless: impl Fn(&kube::core::Status) -> bool) -> kube::Result<Outcome> {
    match result {
        Ok(_) => Ok(Outcome::Done),
        Err(kube::Error::Api(status)) if harmless(&status) => Ok(Outcome::Nothing),
        Err(error) => Err(error),
    }
}

/// Says whether a request that failed may have been carried out all the same: the API server did not answer, or not to the end.
pub fn may_be_done(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code))
}

/// Lists the pods on a node at the API server as a drain sees them, whatever the watch shows; nothing when it cannot be read whether one of
/// them has to go.
pub async fn pods_on(client: &Client, node: &str) -> kube::Result<Option<Vec<Arc<ReadPod>>>> {
    let on_it = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Guarded<Pod>>::all(client.clone()).list(&on_it).await?;
    let read = |pod: Guarded<Pod>| ReadPod::to_evict(&pod.or_stand_in()?).ok().map(Arc::new);
    Ok(pods.items.into_iter().map(read).collect())
}

/// Deletes a cluster-scoped object if it still is the one with this UID.
pub async fn delete<K>(client: &Client, name: &str, uid: &str) -> kube::Result<Outcome>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let options = DeleteParams { preconditions, ..DeleteParams::default() };
    let deleted = Api::<K>::all(client.clone()).delete(name, &options).await;
    unless(deleted, |status| status.is_not_found() || status.is_conflict())
}

/// Returns the taint of a node that is being drained, in the API server's words.
pub fn disrupted_taint() -> Taint {
    Taint { key: labels::DISRUPTED.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }
}

/// How far a node is kept to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disruption {
    /// It is not.
    Over,
    /// New pods stay away. What runs there may be needed for long yet, and so are those who send it requests.
    Tainted,
    /// Load balancers stay away, too.
    Retired,
}

/// Returns the patch that brings the disrupted taint, and the label that keeps load balancers away, to what they should be; none where they are. A
/// label that somebody else set stays as it is.
fn disruption(node: &Node, wanted: Disruption) -> Option<Value> {
    let mut patch = json!({});
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let tainted = taints.iter().any(|taint| taint.key == labels::DISRUPTED);
    if tainted != (wanted != Disruption::Over) {
        if tainted {
            taints.retain(|taint| taint.key != labels::DISRUPTED);
        } else {
            taints.push(disrupted_taint());
        }
        patch["spec"] = json!({ "taints": taints });
    }
    let label = match (node.labels().get(labels::EXCLUDE_FROM_BALANCERS).map(String::as_str), wanted) {
        (None, Disruption::Retired) => Some(json!(KEPT_OFF)),
        (Some(KEPT_OFF), Disruption::Over) => Some(Value::Null),
        _ => None,
    };
    if let Some(label) = label {
        patch["metadata"] = json!({ "labels": { (labels::EXCLUDE_FROM_BALANCERS): label } });
    }
    patch.as_object().is_some_and(|patch| !patch.is_empty()).then_some(patch)
}

/// Keeps new pods and load balancers off a node that goes for certain and was seen: nothing is asked where they are kept off already.
pub async fn retire(client: &Client, seen: &Node) -> kube::Result<Outcome> {
    edit_node(client, seen, |node| disruption(node, Disruption::Retired)).await
}

/// The same as [`edit_node`] for a node that may not have been seen. That nothing is to be changed is believed of what the API server has only: what
/// was seen may be older than what this process wrote.
async fn edit(client: &Client, which: &Which, change: impl Fn(&Node) -> Option<Value>) -> kube::Result<Outcome> {
    if let Some(seen) = which.seen.as_deref().filter(|seen| change(seen).is_some()) {
        return edit_node(client, seen, change).await;
    }
    match Api::<Node>::all(client.clone()).get_opt(&which.name).await? {
        Some(node) => edit_node(client, &node, change).await,
        None => Ok(Outcome::Nothing),
    }
}

/// Writes what `change` makes of a node as a merge patch: first of the node as it was seen, then, whenever another wrote in between, as the API
/// server has it.
pub async fn edit_node(client: &Client, seen: &Node, change: impl Fn(&Node) -> Option<Value>) -> kube::Result<Outcome> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = seen.name_any();
    let mut read = None;
    for tries_left in (0..WRITE_TRIES).rev() {
        let node = read.as_ref().unwrap_or(seen);
        let Some(mut patch) = change(node) else { return Ok(Outcome::Nothing) };
        patch["metadata"]["resourceVersion"] = json!(node.resource_version());
        match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(Outcome::Done),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Outcome::Nothing),
            Err(kube::Error::Api(status)) if status.is_conflict() && tries_left > 0 => {
                read = nodes.get_opt(&name).await?;
                if read.is_none() {
                    return Ok(Outcome::Nothing);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Nothing)
}

/// Labels a node, whoever else writes it in the same moment: the UID makes the API server refuse another node of the same name.
pub async fn label_node(client: &Client, node: &Node, (key, value): (&str, &str)) -> kube::Result<Outcome> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({ "metadata": { "uid": node.uid(), "labels": { key: value } } });
    let patched = nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
    unless(patched, |status| status.is_not_found() || status.is_conflict() || status.is_invalid())
}

/// Sets `status.nominatedNodeName`; the UID in the patch makes the API server refuse another pod of the same name.
async fn nominate(client: &Client, pod: &PodKey, uid: &str, node: &str) -> kube::Result<Outcome> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let patch = json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": node } });
    let patched = pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    unless(patched, |status| status.is_not_found() || status.is_conflict() || status.is_invalid())
}

/// What became of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// What it means.
    pub answer: Answer,
    /// Status of HTTP.
    pub code: u16,
}

/// Asks the API server to evict a pod, if it still is the one with this UID. An error only where it did not answer: what it has against one
/// pod, such as two budgets or a webhook, is an answer.
pub async fn evict(client: &Client, pod: &PodKey, uid: &str) -> kube::Result<Eviction> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let eviction = eviction::request(pod, uid);
    match pods.create_subresource::<Value, Value>("eviction", &pod.name, &posted(), &eviction).await {
        Ok(_) => Ok(Eviction { answer: Answer::Done, code: 200 }),
        Err(kube::Error::Api(status)) => {
            let answer = match status.code {
                // Gone, or another pod of that name.
                404 | 409 => Answer::Done,
                429 if is_of_a_budget(&status) => Answer::Budget,
                _ => Answer::Failed(status.message.into()),
            };
            Ok(Eviction { answer, code: status.code })
        }
        Err(error) => Err(error),
    }
}

/// Says whether an eviction was refused for a PodDisruptionBudget, and not because the API server is busy.
fn is_of_a_budget(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "DisruptionBudget")
}

/// Deletes a pod with a shortened grace, past the deadline that its owner set for the drain.
pub async fn delete_pod(client: &Client, pod: &PodKey, uid: &str, grace_seconds: u32) -> kube::Result<Outcome> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let options = DeleteParams { preconditions, grace_period_seconds: Some(grace_seconds), ..DeleteParams::default() };
    let deleted = pods.delete(&pod.name, &options).await;
    unless(deleted, |status| status.is_not_found() || status.is_conflict())
}

/// Writes a status by merge patch, if the object still is at the version that the decision was made on.
pub async fn write_status<K>(client: &Client, object: &K, status: &impl serde::Serialize) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    patch_status(&Api::all(client.clone()), object, status).await
}

/// The same where the object's API is known: also for kinds that live in namespaces.
pub async fn patch_status<K>(api: &Api<K>, object: &K, status: &impl serde::Serialize) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = json!({ "metadata": { "resourceVersion": object.resource_version() }, "status": status });
    api.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// Returns a status as a merge patch that also takes away what was said before and is not any more: a merge patch leaves alone what it does not
/// name, such as a resource that the last node had which went.
pub fn replacing<T: serde::Serialize>(before: Option<&T>, status: &T) -> Value {
    let mut patch = json!(status);
    if let Some(before) = before {
        take_away(&json!(before), &mut patch);
    }
    patch
}

fn take_away(before: &Value, patch: &mut Value) {
    let (Value::Object(before), Value::Object(patch)) = (before, patch) else { return };
    for (field, known) in before {
        match patch.get_mut(field) {
            Some(wanted) => take_away(known, wanted),
            None => drop(patch.insert(field.clone(), Value::Null)),
        }
    }
}

/// Writes labels, annotations and finalizers by merge patch, if the object still is at the version that was seen.
pub async fn write_metadata<K>(client: &Client, object: &K, metadata: Value) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut patch = json!({ "metadata": metadata });
    patch["metadata"]["resourceVersion"] = json!(object.resource_version());
    let api: Api<K> = Api::all(client.clone());
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// Writes what `change` makes of an object's metadata, which it is shown as it is: first as it was seen, then, whenever another wrote in
/// between, as the API server has it.
pub async fn edit_metadata<K>(
    client: &Client,
    seen: &K,
    change: impl Fn(&ObjectMeta) -> Option<Value>,
) -> kube::Result<Outcome>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let name = seen.name_any();
    let mut known = seen.meta().clone();
    for tries_left in (0..WRITE_TRIES).rev() {
        let Some(metadata) = change(&known) else { return Ok(Outcome::Nothing) };
        let mut patch = json!({ "metadata": metadata });
        patch["metadata"]["resourceVersion"] = json!(known.resource_version);
        match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(Outcome::Done),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Outcome::Nothing),
            Err(kube::Error::Api(status)) if status.is_conflict() && tries_left > 0 => {
                let Some(now) = api.get_metadata_opt(&name).await? else { return Ok(Outcome::Nothing) };
                known = now.metadata;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Nothing)
}

/// Adds a finalizer unless it is there; returns the object as it is then.
pub async fn add_finalizer<K>(client: &Client, object: &K, finalizer: &str) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    if object.finalizers().iter().any(|known| known == finalizer) || object.meta().deletion_timestamp.is_some() {
        return Ok(object.clone());
    }
    let mut finalizers = object.finalizers().to_vec();
    finalizers.push(finalizer.to_owned());
    write_metadata(client, object, json!({ "finalizers": finalizers })).await
}

/// Takes a finalizer away: metadata only, so that no rule on the spec can stand in the way. Returns the object as it was let go; nothing where
/// it was, or is gone.
pub async fn remove_finalizer<K>(client: &Client, object: &K, finalizer: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    if object.finalizers().iter().all(|known| known != finalizer) {
        return Ok(None);
    }
    let left: Vec<&String> = object.finalizers().iter().filter(|known| *known != finalizer).collect();
    match write_metadata(client, object, json!({ "finalizers": left })).await {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a reference to a pod, for events.
pub fn pod_reference(key: &PodKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Returns a reference to an object, for events.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let metadata: &ObjectMeta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
