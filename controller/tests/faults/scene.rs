//! A scene: pools, pods and perhaps a class of its own on the shared stand.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, conditions, labels};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::aws::Aws;
use crate::support::stand::{Stand, instance_of, node_of};
use crate::support::{create, of_pool, until, until_within};

/// The label by which pods of a scene find the nodes of its pools.
const SCENE: &str = "karp-scene";
/// Scenes share two processors with all others.
const PATIENCE: Duration = Duration::from_secs(150);

/// The objects of one scene.
pub struct Scene<'s> {
    pub stand: &'s Stand,
    /// Names the pool, the pods' Deployment and the class, if it has one.
    pub name: String,
}

impl<'s> Scene<'s> {
    pub fn new(stand: &'s Stand, what: &str) -> Self {
        Self { stand, name: format!("{}-{what}", stand.name) }
    }

    /// Makes a scene with a pool of the stand's class that buys these types on demand.
    pub async fn on_demand(stand: &'s Stand, what: &str, types: &[&str]) -> Self {
        let scene = Self::new(stand, what);
        scene.pool(&scene.name, &stand.name, &["on-demand"], types, 1).await;
        scene
    }

    /// The same with a class of its own, which is the stand's but for these fields.
    pub async fn with_class(stand: &'s Stand, what: &str, types: &[&str], fields: Value) -> Self {
        let scene = Self::new(stand, what);
        scene.class(&scene.name, fields).await;
        scene.pool(&scene.name, &scene.name, &["on-demand"], types, 1).await;
        scene
    }

    /// Makes a class like the stand's but for these fields; those that are null are left out.
    pub async fn class(&self, name: &str, fields: Value) {
        let own = self.classes().get(&self.stand.name).await.expect("the stand's class");
        let mut spec = serde_json::to_value(own.spec).expect("plain data");
        for (key, value) in fields.as_object().expect("fields") {
            spec[key] = value.clone();
        }
        spec.as_object_mut().expect("fields").retain(|_, value| !value.is_null());
        create::<Ec2NodeClass>(&self.classes(), json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    /// Makes a pool for the scene's pods; a heavier one is taken first.
    pub async fn pool(&self, name: &str, class: &str, markets: &[&str], types: &[&str], weight: u32) {
        let mut pool = self.stand.pool_manifest(name, class, markets);
        pool["spec"]["weight"] = json!(weight);
        pool["spec"]["template"]["metadata"]["labels"][SCENE] = json!(self.name);
        let wanted = json!({ "key": labels::INSTANCE_TYPE, "operator": "In", "values": types });
        let requirements = &mut pool["spec"]["template"]["spec"]["requirements"];
        requirements.as_array_mut().expect("a list").push(wanted);
        create::<NodePool>(&Api::all(self.stand.client.clone()), pool).await;
    }

    /// Makes a Deployment of pods of which two fit on no `large`.
    pub async fn pods(&self, replicas: u32) {
        let mut spec = self.stand.pod_spec("1500m");
        spec["nodeSelector"][SCENE] = json!(self.name);
        let deployment = json!({
            "metadata": { "name": self.name, "namespace": self.stand.name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": self.name } },
                "template": { "metadata": { "labels": { "app": self.name } }, "spec": spec },
            },
        });
        create::<Deployment>(&Api::namespaced(self.stand.client.clone(), &self.stand.name), deployment).await;
    }

    pub async fn running(&self) -> Vec<Pod> {
        let mut pods = self.stand.running().await;
        pods.retain(|pod| pod.labels().get("app") == Some(&self.name));
        pods
    }

    pub async fn until_running(&self, count: usize) {
        let what = format!("{count} pods of {} run", self.name);
        until_within(PATIENCE, &what, async || self.running().await.len() == count).await;
    }

    pub fn classes(&self) -> Api<Ec2NodeClass> {
        Api::all(self.stand.client.clone())
    }

    pub fn instances(&self) -> Vec<Value> {
        self.stand.aws.instances(&self.name)
    }

    pub async fn claims(&self) -> Vec<NodeClaim> {
        of_pool(&self.stand.client, &self.name).await
    }

    /// Asserts that the scene's pool ever had one instance and that its one claim stands for it, where its pod runs; returns the instance.
    pub async fn only_instance(&self) -> Value {
        let mut instances = self.instances();
        assert_eq!(instances.len(), 1, "{}: {instances:?}", self.name);
        let claims = self.claims().await;
        let ids: Vec<String> = claims.iter().map(instance_of).collect();
        assert_eq!(ids, [instances[0]["id"].as_str().expect("an id")], "the claim of {} stands for it", self.name);
        let nodes: Vec<String> = self.running().await.iter().map(node_of).collect();
        // a pod may run before its node's registration is written into the claim
        until(&format!("the claim of {} names the node of its pod", self.name), async || {
            let claims = self.claims().await;
            let named: Vec<_> = claims.iter().filter_map(|claim| claim.status.as_ref()?.node_name.clone()).collect();
            named == nodes
        })
        .await;
        instances.remove(0)
    }

    /// Returns status and reason of a condition of the scene's class.
    pub async fn said(&self, kind: &str) -> Option<(String, String)> {
        let status = self.classes().get(&self.name).await.expect("the class").status?;
        let condition = conditions::get(&status.conditions, kind)?;
        Some((format!("{:?}", condition.status), condition.reason.clone()))
    }

    /// Waits until a condition of the scene's class has this status and, unless it is empty, this reason.
    pub async fn until_said(&self, kind: &str, status: &str, reason: &str) {
        until_within(PATIENCE, &format!("{}: {kind} is {status} {reason}", self.name), async || {
            let told = self.said(kind).await;
            told.is_some_and(|(now, why)| now == status && (reason.is_empty() || why == reason))
        })
        .await;
    }

    /// Returns the times at which EC2 answered requests for instances of the scene, with how many there were.
    pub fn asked(&self) -> Vec<(f64, Value)> {
        let calls = self.stand.aws.calls("CreateFleet");
        let ours = |call: &Value| call["params"].to_string().contains(&self.name) && call["params"]["DryRun"].is_null();
        calls.into_iter().filter(ours).map(|call| (call["time"].as_f64().expect("a time"), call)).collect()
    }

    /// Returns the events of a reason about the scene's objects.
    pub async fn events(&self, reason: &str) -> Vec<Event> {
        self.stand.events(reason, &self.name).await
    }
}

/// Changes how many pods a Deployment has.
pub async fn scale(stand: &Stand, name: &str, replicas: u32) {
    let deployments: Api<Deployment> = Api::namespaced(stand.client.clone(), &stand.name);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch(name, &PatchParams::default(), &patch).await.expect("it is scaled");
}

/// Takes the pods, pools and classes of all scenes away and waits until nothing of them is left.
pub async fn clear(stand: &Stand) {
    let deployments: Api<Deployment> = Api::namespaced(stand.client.clone(), &stand.name);
    deployments.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("they are deleted");
    let begin = format!("{}-", stand.name);
    let ours = |name: &str| name.starts_with(&begin);
    let (pools, classes) = (Api::<NodePool>::all(stand.client.clone()), Api::<Ec2NodeClass>::all(stand.client.clone()));
    for pool in pools.list(&ListParams::default()).await.expect("pools").items {
        if ours(&pool.name_any()) {
            pools.delete(&pool.name_any(), &DeleteParams::default()).await.expect("a pool is deleted");
        }
    }
    until("the pools are gone", async || {
        let left = pools.list(&ListParams::default()).await;
        left.is_ok_and(|left| left.items.iter().all(|pool| !ours(&pool.name_any())))
    })
    .await;
    for class in classes.list(&ListParams::default()).await.expect("classes").items {
        if ours(&class.name_any()) {
            classes.delete(&class.name_any(), &DeleteParams::default()).await.expect("a class is deleted");
        }
    }
    until("the classes are gone", async || {
        let left = classes.list(&ListParams::default()).await;
        left.is_ok_and(|left| left.items.iter().all(|class| !ours(&class.name_any())))
    })
    .await;
}

/// Two subnets of one zone, of which the first has more room.
pub struct Subnets {
    pub roomy: String,
    pub small: String,
}

impl Subnets {
    pub fn plant(aws: &Aws) -> Self {
        // beside those of other runs on the same sandbox, should they be left over; the seed's end at .96
        let third = 100 + std::process::id() % 150;
        let (roomy, small) = (format!("10.64.{third}.0/25"), format!("10.64.{third}.128/26"));
        Self { roomy: aws.plant_subnet('a', &roomy), small: aws.plant_subnet('a', &small) }
    }

    pub fn uproot(&self, aws: &Aws) {
        for id in [&self.roomy, &self.small] {
            aws.ec2(&format!("Action=DeleteSubnet&SubnetId={id}"));
        }
    }
}

/// Watches for a while that something holds all the time.
pub async fn always(span: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < span {
        assert!(holds().await, "{what}: not after {:?}, at {}", begin.elapsed(), Timestamp::now());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
