//! The objects of a live cluster, with only what decisions depend on.

use std::collections::BTreeSet;

use clap::Args;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    ConfigMap, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karp_domain::api::{CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, conditions};
use karp_domain::cluster::{Reference, Workload};
use karp_kube::client::ConnectError;
use kube::api::ListParams;
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cloud::KEPT;
use crate::files::{Found, Objects, Origin, Redact, has_ended};
use crate::observe::unread::Guarded;
use crate::ops::calls;
use crate::ops::leader::Fence;

/// Objects asked for at once, as kubectl does.
const PAGE: u32 = 500;

/// Says which cluster is asked.
#[derive(Args, Clone, Debug, Default)]
pub struct Cluster {
    /// Context of the kubeconfig; the current one without it. In a pod without a kubeconfig its service account is used.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Cluster {
    /// Reads every object that decisions depend on.
    ///
    /// # Errors
    /// When there is no cluster to ask, or it does not answer.
    pub fn objects(&self) -> anyhow::Result<Objects> {
        runtime()?.block_on(async { objects(&client(self.config().await?)?).await })
    }

    /// Says how the cluster is reached.
    ///
    /// # Errors
    /// When there is no cluster to ask.
    pub async fn config(&self) -> anyhow::Result<Config> {
        calls::way(self.context.as_deref()).await
    }
}

/// Makes a client that writes nothing. No answer is waited for without end, and what is refused for now is tried again for half a minute: kube's
/// own retries sleep for minutes, without a word.
///
/// # Errors
/// When the configuration makes no client.
pub fn client(config: Config) -> Result<Client, ConnectError> {
    calls::client(config, &Fence::shut())
}

/// Makes the runtime on which a subcommand asks.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

async fn objects(client: &Client) -> anyhow::Result<Objects> {
    let mut objects = Objects {
        nodes: list::<Node>(client).await?,
        claims: named(guarded::<NodeClaim>(client).await)?,
        pools: named(guarded::<NodePool>(client).await)?,
        classes: named(guarded::<Ec2NodeClass>(client).await)?,
        overlays: named(guarded::<NodeOverlay>(client).await)?,
        buffers: permitted(guarded::<CapacityBuffer>(client).await)?,
        daemons: list::<DaemonSet>(client).await?,
        limit_ranges: list::<LimitRange>(client).await?,
        budgets: list::<PodDisruptionBudget>(client).await?,
        namespaces: list::<Namespace>(client).await?,
        volumes: list::<PersistentVolume>(client).await?,
        volume_claims: list::<PersistentVolumeClaim>(client).await?,
        storage_classes: list::<StorageClass>(client).await?,
        csi_nodes: list::<CSINode>(client).await?,
        attachments: permitted(pages::<VolumeAttachment>(client).await)?,
        priority_classes: list::<PriorityClass>(client).await?,
        config_maps: kept(client).await,
        pods: list::<Pod>(client).await?,
        ..Objects::default()
    };
    refer(client, &mut objects).await;
    // those that its controller does not heed, or has left out, are of no effect
    objects.overlays.retain(|overlay| {
        let status = overlay.object.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
    });
    // what has ended holds nothing
    objects.pods.retain(|pod| !has_ended(&pod.object));
    Ok(objects)
}

/// Finds what a controller keeps, in whichever namespace; without it, or the right to read it, prices and memory are
/// estimates, nothing is left out, and reservations count as used up.
async fn kept(client: &Client) -> Vec<Found<ConfigMap>> {
    let mut all = Vec::new();
    for (name, _) in KEPT {
        let ours = ListParams::default().fields(&format!("metadata.name={name}"));
        match Api::<ConfigMap>::all(client.clone()).list(&ours).await {
            Ok(listed) if listed.items.len() > 1 => {
                anstream::eprintln!(
                    "note: reckoning without what a controller keeps, there is more than one ConfigMap {name}"
                );
            }
            Ok(listed) => all.extend(listed.items.into_iter().map(found)),
            Err(error) => {
                anstream::eprintln!(
                    "note: reckoning without what a controller keeps, ConfigMap {name} cannot be read: {error}"
                );
            }
        }
    }
    all
}

/// Leaves out buffers that no controller heeds: one that does says so in their status within seconds.
pub fn heeded(objects: &mut Objects) {
    objects.buffers.retain(|found| {
        let status = found.object.status.as_ref();
        let known = status.and_then(|status| conditions::get(&status.conditions, conditions::READY_FOR_PROVISIONING));
        if known.is_none() {
            let (namespace, name) = (found.object.namespace().unwrap_or_default(), found.object.name_any());
            anstream::eprintln!(
                "note: no room is kept for CapacityBuffer {namespace}/{name}: no controller has looked at it (feature gate CapacityBuffer)"
            );
        }
        known.is_some()
    });
}

/// Takes a listing; without the right to it, none of the kind is reckoned with.
fn permitted<K: Resource<DynamicType = ()>>(listed: kube::Result<Vec<Found<K>>>) -> anyhow::Result<Vec<Found<K>>> {
    match listed {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let kind = K::kind(&());
            anstream::eprintln!("note: reckoning without {kind}s, they cannot be listed: {}", status.message);
            Ok(Vec::new())
        }
        listed => named(listed),
    }
}

/// Finds what buffers refer to.
async fn refer(client: &Client, objects: &mut Objects) {
    let buffers = std::mem::take(&mut objects.buffers);
    let references = buffers
        .iter()
        .filter_map(|found| Some((found.object.namespace().unwrap_or_default(), Reference::of(&found.object)?)));
    for (namespace, reference) in references.collect::<BTreeSet<_>>() {
        match reference {
            Reference::Template(name) => {
                objects.pod_templates.extend(one::<PodTemplate>(client, &namespace, name).await);
            }
            Reference::Workload(Workload::Deployment, name) => {
                objects.deployments.extend(one::<Deployment>(client, &namespace, name).await);
            }
            Reference::Workload(Workload::StatefulSet, name) => {
                objects.stateful_sets.extend(one::<StatefulSet>(client, &namespace, name).await);
            }
            Reference::Workload(Workload::ReplicaSet, name) => {
                objects.replica_sets.extend(one::<ReplicaSet>(client, &namespace, name).await);
            }
        }
    }
    objects.buffers = buffers;
}

/// Gets an object that a buffer refers to; without it, or the right to read it, the buffer is not ready.
async fn one<K>(client: &Client, namespace: &str, name: &str) -> Option<Found<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned + Redact,
{
    match Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await {
        Ok(object) => object.map(found),
        Err(error) => {
            let kind = K::kind(&());
            anstream::eprintln!("note: reckoning without {kind} {namespace}/{name} of a CapacityBuffer: {error}");
            None
        }
    }
}

fn found<K: Redact>(item: K) -> Found<K> {
    Found { object: Box::new(item.redacted()), origin: Origin::new("the cluster".as_ref()) }
}

async fn list<K>(client: &Client) -> anyhow::Result<Vec<Found<K>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Redact,
{
    named(pages(client).await)
}

/// Names the kind that cannot be listed.
fn named<K: Resource<DynamicType = ()>>(listed: kube::Result<Vec<Found<K>>>) -> anyhow::Result<Vec<Found<K>>> {
    listed.map_err(|error| anyhow::anyhow!("{} cannot be listed: {error}", K::plural(&())))
}

/// Lists a kind; nothing when the cluster does not know the kind.
async fn pages<K>(client: &Client) -> kube::Result<Vec<Found<K>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Redact,
{
    known(every(client, found).await)
}

/// Lists a kind of which the API server admits what cannot be read. Such an object is told; nothing is reckoned with but what the
/// controller looks after, too: the rest of one that has an instance, or is on its way out.
async fn guarded<K>(client: &Client) -> kube::Result<Vec<Found<K>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Redact,
{
    let keep: fn(Guarded<K>) -> Option<Found<K>> = |one| {
        if let Some(broken) = one.0.as_ref().err().filter(|broken| !broken.unread.foreign) {
            let what = if broken.stand_in.is_some() { "read without a field" } else { "left out" };
            anstream::eprintln!("warning: {what}: the cluster: {}", broken.unread.why);
        }
        one.or_stand_in().map(found)
    };
    Ok(known(every(client, keep).await)?.into_iter().flatten().collect())
}

fn known<T>(listed: kube::Result<Vec<T>>) -> kube::Result<Vec<T>> {
    match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => listed,
    }
}

/// Lists a kind page by page, and keeps of each object what is wanted.
///
/// # Errors
/// When it cannot be listed, with code 404 when the cluster does not know the kind.
pub async fn every<K, T>(client: &Client, keep: fn(K) -> T) -> kube::Result<Vec<T>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = api.list(&page).await?;
        all.extend(listed.items.into_iter().map(keep));
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use karp_domain::cluster::{Catalogues, Settings};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::files::{self, Offered};

    /// An API server that has these objects, by path and query; others are empty lists, without the kinds of Karpenter's next version.
    fn server(known: Vec<(&'static str, Value)>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let (code, answer) = match known.iter().find(|(path, _)| uri.starts_with(path)) {
                Some((_, answer)) if answer["kind"] == "Status" => {
                    (answer["code"].as_u64().unwrap_or(500), answer.clone())
                }
                Some((_, answer)) => (200, answer.clone()),
                None if ["nodeoverlays", "capacitybuffers", "podtemplates/", "deployments/"]
                    .iter()
                    .any(|kind| uri.contains(kind)) =>
                {
                    (404, status(404, "NotFound"))
                }
                None => (200, list(&[], "")),
            };
            log.lock().expect("a log").push(uri);
            let code = u16::try_from(code).expect("a status");
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async { Ok::<_, Infallible>(response.expect("a response")) }
        });
        (Client::new(service, "default"), asked)
    }

    fn list(items: &[Value], more: &str) -> Value {
        json!({"metadata": {"continue": more}, "items": items})
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
    }

    fn pod(name: &str, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop", "uid": name}, "status": {"phase": phase},
            "spec": {"containers": [{"name": "c", "image": "hunter2", "resources": {"requests": {"cpu": "1"}}}]}})
    }

    fn pool(ready: &str) -> Value {
        json!({"metadata": {"name": "general", "uid": "p"},
            "spec": {"template": {"spec": {"requirements": [],
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "r", "message": "",
                "lastTransitionTime": "2026-11-21T12:00:00Z"}]}})
    }

    #[tokio::test]
    async fn a_cluster_is_read_page_by_page_without_what_has_ended() {
        let (client, asked) = server(vec![
            ("/api/v1/pods?&limit=500&continue=two", list(&[pod("b", "Running"), pod("c", "Succeeded")], "")),
            ("/api/v1/pods?", list(&[pod("a", "Pending")], "two")),
        ]);
        let objects = objects(&client).await.expect("objects");
        let names: Vec<_> = objects.pods.iter().map(|pod| pod.object.metadata.name.clone().expect("a name")).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(objects.pods.iter().all(|pod| !format!("{:?}", pod.object).contains("hunter2")));
        let asked = asked.lock().expect("a log");
        assert!(
            asked.iter().any(|uri| uri.contains("/nodeoverlays")),
            "a kind that is not known is no error: {asked:?}"
        );
    }

    #[tokio::test]
    async fn pools_that_are_not_ready_and_prices_that_are_kept_decide() {
        let kept = (
            "/api/v1/configmaps?&fieldSelector=metadata.name%3Dkarp-prices",
            list(
                &[json!({"metadata": {"name": "karp-prices", "namespace": "karp"},
            "binaryData": {"prices.v2.json.gz": packed(r#"{"on_demand": {"m7i.large": 42000000}, "spot": {"m7i.xlarge": {"us-east-1b": 21000000}}}"#)}})],
                "",
            ),
        );
        for (ready, expected) in [("True", true), ("False", false)] {
            let (client, _) = server(vec![kept.clone(), ("/apis/karpenter.sh/v1/nodepools", list(&[pool(ready)], ""))]);
            let objects = objects(&client).await.expect("objects");
            let offered = Offered::new(None, &[], None).expect("built-in types");
            let catalogues = offered.catalogues(&objects, jiff::Timestamp::UNIX_EPOCH);
            let snapshot = files::snapshot(&objects, catalogues, Settings::default(), jiff::Timestamp::UNIX_EPOCH);
            let snapshot = snapshot.expect("a snapshot");
            assert_eq!(snapshot.pools[0].ready, expected);
            let catalogue = snapshot.catalogues.get("default").expect("a catalogue");
            let price = |name: &str| {
                let bought = catalogue.get(name)?.offerings.iter().find(|o| o.capacity_type.as_str() == "on-demand")?;
                Some((bought.price.dollars(), bought.source))
            };
            assert_eq!(price("m7i.large"), Some((0.042, karp_domain::catalogue::PriceSource::Published)));
            assert_eq!(price("m7i.xlarge").expect("a price").1, karp_domain::catalogue::PriceSource::Estimated);
            assert!(catalogue.get("m7i.2xlarge").is_none(), "the region's price list does not have it");
        }
    }

    #[tokio::test]
    async fn what_a_controller_could_not_have_is_left_out() {
        let absent = json!([{"instanceType": "m7i.large", "zone": "us-east-1a", "capacityType": "spot",
            "until": "1970-01-01T00:03:00Z", "seconds": 180}]);
        let capacity = packed(&json!({"absent": absent, "reservations": {"cr-1": 2, "cr-2": 0}}).to_string());
        let map = json!({"metadata": {"name": "karp-capacity", "namespace": "karp"}, "binaryData": {"capacity.v1.json.gz": capacity}});
        let reservation = |id: &str| {
            json!({"id": id, "availabilityZone": "us-east-1a", "instanceType": "m7i.large", "ownerID": "123456789012",
                "instanceMatchCriteria": "targeted", "reservationType": "default", "state": "active"})
        };
        let class = json!({"metadata": {"name": "default"},
            "spec": {"amiSelectorTerms": [], "securityGroupSelectorTerms": [], "subnetSelectorTerms": []},
            "status": {"capacityReservations": [reservation("cr-1"), reservation("cr-2"), reservation("cr-3")]}});
        let (client, _) = server(vec![
            ("/api/v1/configmaps?&fieldSelector=metadata.name%3Dkarp-capacity", list(&[map], "")),
            ("/apis/karpenter.sh/v1/nodepools", list(&[pool("True")], "")),
            ("/apis/karpenter.k8s.aws/v1/ec2nodeclasses", list(&[class], "")),
        ]);
        let objects = objects(&client).await.expect("objects");
        let offered = Offered::new(None, &[], None).expect("built-in types");
        let at = |seconds| {
            let now = jiff::Timestamp::from_second(seconds).expect("a time");
            let catalogues = offered.catalogues(&objects, now);
            let known = catalogues.get("default").expect("a catalogue").get("m7i.large").expect("a type").clone();
            let had =
                known.offerings.iter().filter(|offering| offering.available && &*offering.zone.name == "us-east-1a");
            let way = |offering: &karp_domain::catalogue::Offering| match &offering.reservation {
                Some(held) => format!("{} {}", held.id, held.remaining),
                None => offering.capacity_type.to_string(),
            };
            had.map(way).collect::<BTreeSet<_>>()
        };
        let all = |ways: &[&str]| ways.iter().map(|way| (*way).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(at(0), all(&["cr-1 2", "on-demand"]), "what was not counted has nothing left");
        assert_eq!(at(180), all(&["cr-1 2", "on-demand", "spot"]));
    }

    fn packed(text: &str) -> String {
        use std::io::Write;

        use base64::Engine;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text.as_bytes()).expect("packed");
        base64::engine::general_purpose::STANDARD.encode(encoder.finish().expect("packed"))
    }

    #[tokio::test]
    async fn what_may_not_be_listed_is_named_and_missing_prices_are_no_error() {
        let forbidden = |path| (path, status(403, "Forbidden"));
        let (client, _) = server(vec![forbidden("/api/v1/configmaps")]);
        assert!(objects(&client).await.expect("objects").config_maps.is_empty());
        let (client, _) = server(vec![forbidden("/api/v1/nodes")]);
        let error = objects(&client).await.err().expect("no right").to_string();
        assert!(error.contains("nodes cannot be listed"), "{error}");
    }

    #[tokio::test]
    async fn one_object_that_cannot_be_read_stops_nobody() {
        let mut odd = pool("True");
        odd["metadata"]["name"] = json!("odd");
        odd["spec"]["limits"] = json!({"cpu": "1e60"});
        let mut sick = pod("sick", "Running");
        sick["spec"]["nodeName"] = json!("n1");
        sick["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("one");
        let (client, _) = server(vec![
            ("/apis/karpenter.sh/v1/nodepools", list(&[odd, pool("True")], "")),
            ("/api/v1/pods", list(&[sick, pod("well", "Pending")], "")),
        ]);
        let objects = objects(&client).await.expect("objects");
        let pools: Vec<_> = objects.pools.iter().map(|found| found.object.name_any()).collect();
        assert_eq!(pools, ["general"]);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let (snapshot, problems) = files::readable(&objects, Catalogues::default(), Settings::default(), now);
        let pods: Vec<_> = snapshot.pods.iter().map(|pod| pod.key.to_string()).collect();
        assert_eq!(pods, ["shop/well"]);
        let unread: Vec<_> = snapshot.unread.iter().map(|(node, pod)| format!("{node} {pod}")).collect();
        assert_eq!(unread, ["n1 shop/sick"]);
        let [problem] = &*problems else { panic!("{problems:?}") };
        assert!(problem.to_string().starts_with("the cluster: Pod shop/sick: "), "{problem}");
        let strict = files::snapshot(&objects, Catalogues::default(), Settings::default(), now);
        assert!(strict.is_err(), "files can be put right");
    }

    fn buffer(name: &str, spec: &Value, conditions: &Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop", "uid": name}, "spec": spec, "status": {"conditions": conditions}})
    }

    #[tokio::test]
    async fn buffers_come_with_what_they_refer_to_and_are_heeded_where_a_controller_does() {
        let heeded = json!([{"type": "ReadyForProvisioning", "status": "True", "reason": "r", "message": "hunter2",
            "lastTransitionTime": "2026-11-21T12:00:00Z"}]);
        let by_workload = json!({"scalableRef": {"kind": "Deployment", "name": "web"}, "percentage": 50});
        let template = json!({"spec": {"containers": [{"name": "c", "image": "hunter2", "resources": {"requests": {"cpu": "1"}}}]}});
        let (client, asked) = server(vec![
            (
                "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers",
                list(
                    &[
                        buffer("warm", &by_workload, &heeded),
                        buffer("idle", &by_workload, &json!([])),
                        buffer("lost", &json!({"podTemplateRef": {"name": "gone"}, "replicas": 1}), &heeded),
                    ],
                    "",
                ),
            ),
            (
                "/apis/apps/v1/namespaces/shop/deployments/web",
                json!({"metadata": {"name": "web", "namespace": "shop", "uid": "w"},
                    "spec": {"replicas": 5, "selector": {}, "template": template}}),
            ),
        ]);
        let mut objects = objects(&client).await.expect("objects");
        assert_eq!((objects.buffers.len(), objects.deployments.len(), objects.pod_templates.len()), (3, 1, 0));
        assert!(!format!("{:?}{:?}", objects.buffers[0].object, objects.deployments[0].object).contains("hunter2"));
        let asked = asked.lock().expect("a log").clone();
        let times = |path: &str| asked.iter().filter(|uri| uri.contains(path)).count();
        assert_eq!((times("/deployments/web"), times("/namespaces/shop/podtemplates/gone")), (1, 1), "{asked:?}");
        super::heeded(&mut objects);
        let names: Vec<_> = objects.buffers.iter().map(|found| found.object.name_any()).collect();
        assert_eq!(names, ["warm", "lost"]);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let snapshot = files::snapshot(&objects, Catalogues::default(), Settings::default(), now).expect("a snapshot");
        let [warm] = &*snapshot.buffers else { panic!("{:?}", snapshot.buffers) };
        assert_eq!((warm.key.to_string().as_str(), warm.replicas), ("shop/warm", 3));
    }

    #[tokio::test]
    async fn rights_that_buffers_ask_for_may_be_missing() {
        let forbidden = |path| (path, status(403, "Forbidden"));
        let (client, _) = server(vec![forbidden("/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers")]);
        assert!(objects(&client).await.expect("objects").buffers.is_empty());
        let spec = json!({"podTemplateRef": {"name": "t"}, "replicas": 1});
        let listed = list(&[buffer("room", &spec, &json!([]))], "");
        let (client, _) = server(vec![
            ("/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers", listed),
            forbidden("/api/v1/namespaces/shop/podtemplates/t"),
        ]);
        let objects = objects(&client).await.expect("objects");
        assert_eq!((objects.buffers.len(), objects.pod_templates.len()), (1, 0));
        assert_eq!(files::unready(&objects).map(|one| one.why.reason()).collect::<Vec<_>>(), ["PodTemplateNotFound"]);
    }
}
