//! Objects that cannot be read: their own conditions say so and name the field. Whoever reads them again heals them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use karp_domain::cluster::Unreadable;
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::{Context, Error, node_claim, node_class, node_pool};
use crate::effect;
use crate::observe::Change;
use crate::observe::unread::{Unread, partial};

/// A condition that could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// Keeps the conditions until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    loop {
        for unread in context.stores.aside.all().iter().filter(|unread| !unread.foreign) {
            match tell(unread, &context).await {
                Err(error) if !error.is_race() => {
                    tracing::warn!(object = %unread.why, %error, "its condition could not be written");
                }
                // After a lost race, the winner's version comes by watch.
                _ => {}
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
            () = changed(&mut changes) => {}
        }
    }
}

async fn changed(changes: &mut Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(Change::Unread) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Sets the condition by which an object that cannot be read says so.
pub fn set(all: &mut Vec<Condition>, reason: &str, why: &Unreadable, now: Timestamp) {
    let message = format!("{}: {}", why.field, why.problem);
    conditions::set(all, conditions::VALIDATION_SUCCEEDED, ConditionStatus::False, reason, &message, now);
}

async fn tell(unread: &Unread, context: &Context) -> Result<(), Error> {
    let now = Timestamp::now();
    let mut all = unread.conditions.clone();
    match &*unread.why.kind {
        "NodePool" => {
            set(&mut all, node_pool::INVALID, &unread.why, now);
            conditions::set_ready(&mut all, conditions::NODE_POOL_READY, now);
            conditions::observe(&mut all, unread.metadata.generation);
            write::<NodePool>(unread, all, context).await
        }
        "EC2NodeClass" => {
            set(&mut all, node_class::INVALID, &unread.why, now);
            conditions::set_ready(&mut all, conditions::NODE_CLASS_READY_PARTS, now);
            conditions::observe(&mut all, unread.metadata.generation);
            write::<Ec2NodeClass>(unread, all, context).await
        }
        "NodeClaim" => {
            set(&mut all, node_claim::INVALID, &unread.why, now);
            node_claim::set_ready(&mut all, now);
            write::<NodeClaim>(unread, all, context).await
        }
        // Others' objects have no place for it: event, metric and log tell of them.
        _ => Ok(()),
    }
}

async fn write<K>(unread: &Unread, all: Vec<Condition>, context: &Context) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug,
{
    if all != unread.conditions {
        let object: PartialObjectMeta<K> = partial(&unread.metadata);
        effect::write_status(&context.client, &object, &json!({ "conditions": all })).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use karp_domain::api::labels;
    use karp_domain::scheduling::solve;
    use serde_json::Value;

    use super::super::testing::{self, Server};
    use super::*;

    /// Pods that nothing is wrong with.
    const GOOD: usize = 1000;

    /// A pod that waits for a node.
    fn pod(name: &str, spec: &Value) -> Value {
        let unschedulable = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" });
        let requests = json!({ "cpu": "100m", "memory": "64Mi" });
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": requests } }] },
            "status": { "phase": "Pending", "conditions": [unschedulable] },
        });
        pod["spec"].as_object_mut().expect("fields").extend(spec.as_object().cloned().expect("fields"));
        pod
    }

    fn pool(name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let template = json!({ "spec": { "requirements": [], "nodeClassRef": class } });
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name, "uid": name },
            "spec": { "template": template },
        });
        change(&mut pool["spec"]);
        pool
    }

    /// What nobody can read, one object of each kind; two pools: one by the watch, and one by what is made of it.
    fn unreadable() -> Vec<Value> {
        let much = json!({ "cpu": "1e60" });
        let containers = json!([{ "name": "c", "resources": { "requests": much } }]);
        let odd = json!([{ "key": "a", "operator": "Near", "values": ["b"] }]);
        let mut claim = testing::claim("bad");
        claim["spec"]["resources"] = json!({ "requests": much });
        let object = |kind: &str, field: &str, value: Value| {
            let metadata = json!({ "name": "bad", "namespace": "default", "uid": kind });
            json!({ "kind": kind, "metadata": metadata, (field): value })
        };
        let topologies = json!([{ "matchLabelExpressions": [{ "key": "a", "values": [] }] }]);
        let mut storage = object("StorageClass", "provisioner", json!("ebs.csi.aws.com"));
        storage["allowedTopologies"] = topologies;
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": odd }] });
        let template = json!({ "spec": { "containers": containers } });
        vec![
            claim,
            pool("much", |spec| spec["limits"] = much.clone()),
            pool("labelled", |spec| spec["template"]["metadata"] = json!({ "labels": { "-bad": "x" } })),
            object("Node", "status", json!({ "allocatable": much })),
            object("DaemonSet", "spec", json!({ "selector": {}, "template": template })),
            object("PodDisruptionBudget", "spec", json!({ "selector": { "matchExpressions": odd } })),
            object("LimitRange", "spec", json!({ "limits": [{ "type": "Container", "default": much }] })),
            object("PersistentVolume", "spec", json!({ "nodeAffinity": { "required": terms } })),
            storage,
            pod("unread", &json!({ "containers": containers })),
        ]
    }

    #[tokio::test]
    async fn one_bad_object_of_each_kind_keeps_none_of_a_thousand_pods_waiting() {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let class = json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" },
            "spec": { "amiSelectorTerms": [], "subnetSelectorTerms": [], "securityGroupSelectorTerms": [] },
            "status": { "conditions": [ready] },
        });
        // never a time: nothing can be made of it
        let window = json!({ "nodes": "1", "schedule": "0 0 L * *", "duration": "1h" });
        let with_claim =
            |claim: &str| json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] });
        let classless = json!({
            "kind": "PersistentVolumeClaim", "metadata": { "name": "classless", "namespace": "default" },
            "spec": { "storageClassName": "gone" },
        });
        let mut objects = vec![
            class,
            pool("default", |_| {}),
            pool("cron", |spec| spec["disruption"] = json!({ "consolidateAfter": "0s", "budgets": [window] })),
            classless,
            pod("no-claim", &with_claim("gone")),
            pod("no-class", &with_claim("classless")),
            pod("restricted", &json!({ "nodeSelector": { "karpenter.sh/odd": "x" } })),
        ];
        objects.extend(unreadable());
        objects.extend((0..GOOD).map(|number| pod(&format!("good-{number}"), &json!({}))));
        let context = Server::of(objects).context().await;
        // the one cache that nobody waits for
        context.stores.limit_ranges.wait_until_ready().await.expect("its watch goes on");
        let (_, left_out) = context.stores.snapshot(Default::default(), Default::default(), Timestamp::now());
        let kinds: BTreeSet<&str> = left_out.iter().map(|one| &*one.why.kind).collect();
        let volumes = ["PersistentVolume", "StorageClass"];
        let others = ["DaemonSet", "LimitRange", "Node", "NodeClaim", "NodePool", "PodDisruptionBudget"];
        let told: BTreeSet<&str> = others.into_iter().chain(volumes).collect();
        assert_eq!((kinds, left_out.len()), (told, 9), "{left_out:?}");

        let solution = solve(&context.snapshot().await);
        let refused: Vec<&str> = solution.unschedulable.iter().map(|one| &*one.pod.name).collect();
        assert_eq!(refused, ["no-claim", "no-class", "restricted"], "{:?}", solution.unschedulable);
        assert_eq!(solution.nodes.iter().map(|node| node.pods.len()).sum::<usize>(), GOOD);
        let unread = context.stores.pods.unreadable();
        assert_eq!(unread.iter().map(|(key, _)| &*key.name).collect::<Vec<_>>(), ["unread"]);
    }

    #[test]
    fn the_condition_names_the_field_and_makes_the_object_not_ready() {
        let why = Unreadable::new("NodeClaim", &"odd", "spec.resources.requests.cpu", "1e60 is too big");
        let mut all = Vec::new();
        for part in conditions::NODE_CLAIM_READY {
            conditions::set(&mut all, part, ConditionStatus::True, "", "", Timestamp::UNIX_EPOCH);
        }
        set(&mut all, node_claim::INVALID, &why, Timestamp::UNIX_EPOCH);
        node_claim::set_ready(&mut all, Timestamp::UNIX_EPOCH);
        let said = conditions::get(&all, conditions::VALIDATION_SUCCEEDED).expect("the condition");
        assert_eq!(
            (&*said.reason, &*said.message),
            (node_claim::INVALID, "spec.resources.requests.cpu: 1e60 is too big")
        );
        assert!(conditions::is_false(&all, conditions::READY));
        conditions::clear(&mut all, conditions::VALIDATION_SUCCEEDED);
        node_claim::set_ready(&mut all, Timestamp::UNIX_EPOCH);
        assert!(conditions::is_true(&all, conditions::READY));
    }
}
