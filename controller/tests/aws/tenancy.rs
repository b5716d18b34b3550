//! Reservations are of a tenancy, and EC2 lets nobody else in.

use k8s_openapi::api::core::v1::Pod;
use karp_domain::api::{NodeClaim, NodePool, labels};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::reserved::{labelled, select};
use crate::support::stand::Stand;
use crate::support::{create, of_pool, until};

/// By which pods find the nodes of a pool.
const OF: &str = "karp-test-of";

/// Nodes take reservations of their own tenancy.
pub async fn of_their_own(stand: Stand) {
    let tags = json!({ "karp-test": stand.name });
    let held = |id: &str, tenancy: &str| json!({ "id": id, "instance_type": "m5.large", "zone": "us-east-1a", "count": 1, "tenancy": tenancy, "tags": tags });
    stand.aws.reserve(&stand.name, vec![held("cr-shared", "default"), held("cr-own", "dedicated")]);
    let classes = select(&stand, &tags).await;
    let own = format!("{}-own", stand.name);
    let mut pool = stand.pool_manifest(&own, &stand.name, &["reserved", "on-demand"]);
    pool["spec"]["template"]["metadata"]["labels"][OF] = json!("own");
    let asked = json!({ "key": labels::INSTANCE_TENANCY, "operator": "In", "values": ["dedicated"] });
    pool["spec"]["template"]["spec"]["requirements"].as_array_mut().expect("a list").push(asked);
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    create::<NodePool>(&pools, pool).await;

    // two of each: one instance is reserved, the other is bought
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let pod = |number: usize| {
        let mut spec = stand.pod_spec("1500m");
        let affinity = json!({ "key": OF, "operator": if number < 2 { "Exists" } else { "DoesNotExist" } });
        spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [affinity] }] } } });
        json!({ "metadata": { "name": format!("pod-{number}") }, "spec": spec })
    };
    until("4 pods run", async || {
        let there: Vec<_> =
            pods.list(&ListParams::default()).await.expect("a list").iter().map(ResourceExt::name_any).collect();
        for number in (0..4).filter(|number| !there.contains(&format!("pod-{number}"))) {
            // also one that was evicted again: a node may look as if it had its first taint to kube-controller-manager, when it has none any more
            create::<Pod>(&pods, pod(number)).await;
        }
        stand.running().await.len() == 4
    })
    .await;
    for (pool, reservation, tenancy) in [(&stand.name, "cr-shared", "default"), (&own, "cr-own", "dedicated")] {
        let claims = of_pool::<NodeClaim>(&stand.client, pool).await;
        let of = |key: &str| {
            let mut all: Vec<_> = claims.iter().filter_map(|claim| labelled(claim, key)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(of(labels::CAPACITY_TYPE), ["on-demand", "reserved"], "{pool}");
        assert_eq!(of(labels::CAPACITY_RESERVATION_ID), [reservation], "{pool}");
        assert_eq!(of(labels::INSTANCE_TENANCY), [tenancy; 2], "{pool}");
    }
    let status = classes.get(&stand.name).await.expect("the class").status.expect("a status");
    let told: Vec<_> = status.capacity_reservations.iter().map(|one| (&*one.id, one.tenancy.as_str())).collect();
    assert_eq!(told, [("cr-own", "dedicated"), ("cr-shared", "default")]);

    pools.delete(&own, &DeleteParams::default()).await.expect("the pool is deleted");
    until("the pool is gone", async || pools.get_opt(&own).await.is_ok_and(|pool| pool.is_none())).await;
    stand.leave().await;
}
