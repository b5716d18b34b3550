//! All that nodes are launched for, in one answer: static pools, waiting pods and buffers, each on top of those before it.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::CapacityBuffer;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{Buffer, Claim, Pool, Referred, Snapshot};
use karp_domain::scheduling::{
    KeptRoom, Launch, Misfit, Outlook, Purpose, Room, Target, lacking, outlook, replicas, reserve, solve, with_replicas,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::a_cluster;
use crate::world::{TYPES, catalogue, class, created, node, pending, pool, running, snapshot, with};

fn buffer(name: &str, replicas: u32, cpu: &str) -> Arc<Buffer> {
    let object: CapacityBuffer =
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"podTemplateRef": {"name": "t"}, "replicas": replicas}}))
        .unwrap();
    let template = serde_json::from_value(json!({"spec": {"containers": [{"name": "c",
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}}))
    .unwrap();
    Arc::new(Buffer::from_kube(&object, Referred { template: Some(&template), scale: None }, &[]).unwrap())
}

fn only(kind: &str) -> Value {
    json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind]}])
}

fn fixed(kind: &str, count: u64) -> Value {
    with(pool("fixed", only(kind)), &[("spec.replicas", json!(count))])
}

fn world_of(objects: &[Value], buffers: &[Arc<Buffer>]) -> Snapshot {
    let mut snapshot = snapshot(objects, catalogue(TYPES));
    snapshot.buffers.extend(buffers.iter().cloned());
    snapshot
}

/// What each launch is for, of which pool, with how many pods and virtual pods.
fn launches(outlook: &Outlook) -> Vec<(Purpose, &str, usize, usize)> {
    let all = outlook.launches.iter();
    all.map(|Launch { purpose, node, room }| (*purpose, &*node.pool, node.pods.len(), room.len())).collect()
}

#[test]
fn each_takes_the_room_that_those_before_it_leave() {
    let objects = [
        class(),
        pool("default", only("m7i.xlarge")),
        fixed("m7i.large", 2),
        pending("small", "1", "1Gi"),
        pending("large", "3", "1Gi"),
    ];
    let found = outlook(&world_of(&objects, &[buffer("room", 4, "800m")]));
    // the first replica holds the small pod and a virtual one, the second two; the node for the large pod none, so that one is made
    let expected =
        [(Purpose::Replicas, "fixed", 1, 1), (Purpose::Replicas, "fixed", 0, 2), (Purpose::Pods, "default", 1, 1)];
    assert_eq!(launches(&found), expected, "{found:#?}");
    assert!(found.placements.is_empty() && found.unschedulable.is_empty() && found.short.is_empty());
    assert_eq!(found.rooms[0].room, Room::Lacking { launching: 4, refused: 0, pods: 4 });
    assert!(found.rooms[0].placements.is_empty(), "no node of it exists");
}

#[test]
fn a_pod_is_explained_beside_what_static_pools_lack() {
    let objects = [class(), pool("default", only("m7i.xlarge")), fixed("m7i.large", 1), pending("small", "1", "1Gi")];
    let snapshot = world_of(&objects, &[]);
    let ahead = with_replicas(&snapshot);
    let solution = solve(&ahead);
    assert_eq!((solution.placements.len(), solution.nodes.len()), (1, 0));
    assert_eq!(lacking(&ahead, &solution.placements[0].target).map(|pool| &**pool), Some("fixed"));
    let mut there = vec![class(), pool("default", only("m7i.xlarge")), pending("small", "1", "1Gi")];
    there.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    let snapshot = world_of(&there, &[]);
    let ahead = with_replicas(&snapshot);
    assert!(lacking(&ahead, &solve(&ahead).placements[0].target).is_none());
}

#[test]
fn buffers_are_told_apart_and_never_among_pods() {
    let mut objects = vec![class(), pool("default", only("m7i.xlarge"))];
    objects.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    let found = outlook(&world_of(&objects, &[buffer("near", 2, "1"), buffer("far", 1, "3"), buffer("vast", 1, "99")]));
    assert_eq!(launches(&found), [(Purpose::Buffers, "default", 0, 2)]);
    let [near, far, vast] = &*found.rooms else { panic!("{found:#?}") };
    let there = |room: &KeptRoom| (room.buffer.to_string(), room.room, room.placements.len());
    // the largest virtual pods are placed first, and take the node that is there
    assert_eq!(there(near), ("default/near".to_owned(), Room::Lacking { launching: 2, refused: 0, pods: 2 }, 0));
    assert_eq!(there(far), ("default/far".to_owned(), Room::Fits { pods: 1 }, 1));
    assert_eq!(far.placements[0].target, Target::Node("n1".into()));
    assert_eq!(there(vast), ("default/vast".to_owned(), Room::Lacking { launching: 0, refused: 1, pods: 1 }, 0));
    assert_eq!((near.unschedulable.len(), vast.unschedulable.len()), (0, 1));
    assert!(found.unschedulable.is_empty(), "nobody waits for virtual pods");
}

#[test]
fn static_pools_that_shrink_send_their_pods_elsewhere() {
    let mut objects = vec![class(), pool("default", only("m7i.xlarge")), fixed("m7i.large", 0)];
    objects.extend(node("n1", "fixed", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("a", "n1", "1", "1Gi"));
    let found = outlook(&world_of(&objects, &[]));
    assert_eq!(found.surplus, [Arc::from("fixed-n1")]);
    assert_eq!(launches(&found), [(Purpose::Pods, "default", 1, 0)]);
}

#[test]
fn static_pools_stop_at_their_limit_and_take_no_part_beyond_it() {
    let limited = with(fixed("m7i.large", 5), &[("spec.limits", json!({"nodes": 2}))]);
    let pods = (0..4).map(|n| pending(&format!("p{n}"), "1500m", "1Gi"));
    let objects: Vec<Value> = [class(), limited].into_iter().chain(pods).collect();
    let found = outlook(&world_of(&objects, &[buffer("room", 3, "1500m")]));
    assert_eq!(launches(&found), [(Purpose::Replicas, "fixed", 1, 0), (Purpose::Replicas, "fixed", 1, 0)]);
    assert!(matches!(&*found.short, [(pool, Misfit::Limit { .. })] if &**pool == "fixed"), "{:?}", found.short);
    assert_eq!(found.unschedulable.len(), 2, "pods do not grow a static pool");
    assert_eq!(found.rooms[0].room, Room::Lacking { launching: 0, refused: 3, pods: 3 });
}

proptest! {
    #![proptest_config(deep::cases(60))]

    /// The answer is what the controller comes to: claims for replicas are made, then pods are planned, and then room.
    #[test]
    fn it_is_what_the_three_do_in_turn(objects in a_cluster(), count in 0_u64..4, room in 0_u32..4) {
        let mut world = world_of(&objects, &[buffer("room", room, "700m")]);
        if let Some(first) = world.pools.first_mut() {
            *first = Arc::new(Pool { replicas: Some(count), ..Pool::clone(first) });
        }
        let plan = replicas(&world, &BTreeSet::new());
        let found = outlook(&world);
        let mut then = world.clone();
        then.claims.retain(|claim| !plan.delete.contains(&claim.name));
        for name in &plan.delete {
            let claim = world.claims.iter().find(|claim| claim.name == *name).unwrap();
            then.claims.push(Arc::new(Claim { deleting: Some(world.now), ..Claim::clone(claim) }));
        }
        then.claims.extend(plan.create.iter().enumerate().map(|(at, node)| created(node, &format!("//{at}"))));
        let solution = solve(&then);
        let kept = reserve(&then, &solution);
        let of = |purpose| found.launches.iter().filter(move |launch| launch.purpose == purpose);
        prop_assert_eq!(of(Purpose::Replicas).count(), plan.create.len());
        let nodes: Vec<_> = of(Purpose::Pods).map(|launch| &launch.node).collect();
        prop_assert_eq!(nodes, solution.nodes.iter().collect::<Vec<_>>());
        prop_assert_eq!(&found.unschedulable, &solution.unschedulable);
        prop_assert_eq!(&found.surplus, &plan.delete);
        prop_assert_eq!(&found.short, &plan.short);
        prop_assert_eq!(found.rooms[0].room, kept.room(&world.buffers[0]));
        prop_assert_eq!(of(Purpose::Buffers).count(), kept.nodes.len());
        // each pod is in one place, and virtual ones are never among the others
        let on_new = found.launches.iter().flat_map(|launch| &launch.node.pods);
        let mut placed: Vec<_> = on_new.chain(found.placements.iter().map(|placement| &placement.pod)).collect();
        placed.sort();
        let on_new = solution.nodes.iter().flat_map(|node| &node.pods);
        let mut expected: Vec<_> = on_new.chain(solution.placements.iter().map(|placement| &placement.pod)).collect();
        expected.sort();
        prop_assert_eq!(placed, expected);
        let virtual_pods = found.launches.iter().map(|launch| launch.room.len()).sum::<usize>() + found.rooms[0].placements.len();
        prop_assert_eq!(virtual_pods + found.rooms[0].unschedulable.len(), room as usize);
    }
}
