//! Room kept free by CapacityBuffers, and static pools: nodes that no waiting pod asks for.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::CapacityBuffer;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{
    Buffer, LimitRange, MOST_VIRTUAL_PODS, NotReady, Phase, Pod, PodKey, Reference, Referred, Snapshot,
};
use karp_domain::disruption::{Method, plan_disruption, until_stable};
use karp_domain::scheduling::{
    Misfit, ReplicaPlan, Reserve, Room, Solution, replicas, reserve, solve, with_room_taken,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::{a_cluster, a_pod};
use crate::world::{TYPES, catalogue, class, judge, node, pending, pool, running, snapshot, with};

fn buffer(spec: &Value) -> CapacityBuffer {
    serde_json::from_value(json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": {"name": "room", "namespace": "default", "uid": "cb"}, "spec": spec}))
    .unwrap()
}

/// A template that says everything that a virtual pod must not take over.
fn template(cpu: &str, memory: &str) -> Value {
    json!({"metadata": {"labels": {"app": "test"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"}}, "spec": {
        "nodeName": "n9", "priority": 1000, "schedulingGates": [{"name": "g"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}})
}

fn read(spec: &Value, template: &Value, scale: Option<i32>) -> Result<Buffer, NotReady> {
    let template = serde_json::from_value(template.clone()).unwrap();
    Buffer::from_kube(&buffer(spec), Referred { template: Some(&template), scale }, &[])
}

fn by_template(replicas: u32) -> Value {
    json!({"podTemplateRef": {"name": "t"}, "replicas": replicas})
}

fn world_of(objects: &[Value], buffers: impl IntoIterator<Item = Buffer>) -> Snapshot {
    let mut snapshot = snapshot(objects, catalogue(TYPES));
    snapshot.buffers.extend(buffers.into_iter().map(Arc::new));
    snapshot
}

fn kept(snapshot: &Snapshot) -> (Solution, Reserve) {
    let solution = solve(snapshot);
    let reserve = reserve(snapshot, &solution);
    (solution, reserve)
}

fn room(snapshot: &Snapshot, reserve: &Reserve) -> Room {
    reserve.room(&snapshot.buffers[0])
}

/// A template that asks for nothing gets what the API server would give its pods: room is kept for those.
#[test]
fn pods_of_buffers_ask_for_what_limit_ranges_give() {
    let range = |namespace: &str, cpu: &str| {
        let limits = json!([{"type": "Container", "defaultRequest": {"cpu": cpu, "memory": "1Gi"}}]);
        let object = json!({"metadata": {"name": "all", "namespace": namespace}, "spec": {"limits": limits}});
        Arc::new(LimitRange::from_kube(&serde_json::from_value(object).unwrap()).unwrap())
    };
    let template = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "2Gi"}}}]}});
    let template = serde_json::from_value(template).unwrap();
    let referred = Referred { template: Some(&template), scale: None };
    let ranges = [range("default", "700m"), range("other", "9")];
    let limited = json!({"podTemplateRef": {"name": "t"}, "limits": {"cpu": "3"}});
    let buffer = Buffer::from_kube(&buffer(&limited), referred, &ranges).unwrap();
    let pod = buffer.pods().next().unwrap();
    let asked = ["cpu", "memory"].map(|name| pod.shape.requests.get(name).to_string());
    assert_eq!((asked, buffer.replicas), (["700m".to_owned(), "2Gi".to_owned()], 4));
}

#[test]
fn sizes_are_the_larger_wish_within_limits() {
    let of_workload = |more: Value| {
        let mut spec = json!({"scalableRef": {"kind": "Deployment", "name": "web"}});
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    let cases = [
        (by_template(3), None, 3),
        (json!({"podTemplateRef": {"name": "t"}, "limits": {"cpu": "5", "memory": "100Gi"}}), None, 2),
        (json!({"podTemplateRef": {"name": "t"}, "replicas": 9, "limits": {"cpu": "5"}}), None, 2),
        (json!({"podTemplateRef": {"name": "t"}, "replicas": 9, "limits": {"example.com/gpu": "0"}}), None, 9),
        (of_workload(json!({"percentage": 20})), Some(11), 3),
        (of_workload(json!({"percentage": 1})), Some(11), 1),
        (of_workload(json!({"percentage": 0})), Some(11), 0),
        (of_workload(json!({"percentage": 20})), Some(0), 0),
        (of_workload(json!({"percentage": 20, "replicas": 5})), Some(11), 5),
        (of_workload(json!({"percentage": 90, "replicas": 5})), Some(11), 10),
        (of_workload(json!({"percentage": i32::MAX})), Some(i32::MAX), u32::MAX),
    ];
    for (spec, scale, expected) in cases {
        let read = read(&spec, &template("2", "1Gi"), scale).unwrap();
        assert_eq!(read.replicas, expected, "{spec} {scale:?}");
        assert_eq!(read.pods().count() as u32, expected.min(MOST_VIRTUAL_PODS));
    }
}

#[test]
fn buffers_refer_to_templates_and_three_kinds_of_workloads() {
    let refers = |spec: Value| {
        let buffer = buffer(&spec);
        Reference::of(&buffer).map(|reference| match reference {
            Reference::Template(name) => format!("template {name}"),
            Reference::Workload(workload, name) => format!("{} {name}", workload.kind()),
        })
    };
    let workload = |kind: &str| refers(json!({"scalableRef": {"apiGroup": "apps", "kind": kind, "name": "web"}}));
    assert_eq!(refers(by_template(1)).as_deref(), Some("template t"));
    for kind in ["Deployment", "StatefulSet", "ReplicaSet"] {
        assert_eq!(workload(kind), Some(format!("{kind} web")));
    }
    assert_eq!((workload("DaemonSet"), refers(json!({"replicas": 1}))), (None, None));
    assert_eq!((Referred::workload(None, None).scale, Referred::workload(None, Some(4)).scale), (Some(1), Some(4)));
}

#[test]
fn virtual_pods_are_named_and_shaped_as_karpenters() {
    let read = read(&by_template(2), &template("2", "1Gi"), None).unwrap();
    let pods: Vec<_> = read.pods().collect();
    let [first, second] = &*pods else { panic!() };
    assert_eq!((first.key.to_string().as_str(), &*first.uid), ("default/capacity-buffer-room-0", "cb-0"));
    assert_eq!(
        (&*second.key.name, second.priority, &*second.labels["app"]),
        ("capacity-buffer-room-1", i32::MIN, "test")
    );
    assert!(first.is_provisionable() && first.claims.is_empty() && first.eviction_cost_milli() < 0);
    assert!(read.owns(&first.key) && !read.owns(&PodKey::new("default", "capacity-buffer-room-x-0")));
    assert!(!read.owns(&PodKey::new("other", "capacity-buffer-room-0")));
}

#[test]
fn what_is_missing_is_named() {
    let cases = [
        (
            json!({"podTemplateRef": {"name": "t"}, "replicas": 1}),
            "PodTemplateNotFound",
            "PodTemplate t does not exist in the buffer's namespace",
        ),
        (
            json!({"scalableRef": {"kind": "Deployment", "name": "web"}}),
            "ScalableRefNotFound",
            "Deployment web does not exist in the buffer's namespace",
        ),
        (
            json!({"replicas": 1}),
            "ResolutionFailed",
            "neither podTemplateRef nor scalableRef is set: name what the pods are like",
        ),
        (
            json!({"provisioningStrategy": "later"}),
            "ResolutionFailed",
            "provisioningStrategy \"later\" is not known: use buffer.x-k8s.io/active-capacity",
        ),
    ];
    for (spec, reason, message) in cases {
        let error = Buffer::from_kube(&buffer(&spec), Referred::default(), &[]).unwrap_err();
        assert_eq!((error.reason(), error.to_string().as_str()), (reason, message));
    }
    let unreadable = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1e60"}}}]}});
    let error = read(&by_template(1), &unreadable, None).unwrap_err();
    assert!(error.to_string().contains("spec.containers[0]"), "{error}");
}

#[test]
fn room_is_made_once_and_found_again() {
    let none =
        world_of(&[class(), pool("default", json!([]))], [read(&by_template(0), &template("1", "1Gi"), None).unwrap()]);
    let (_, reserve) = kept(&none);
    assert_eq!((room(&none, &reserve), &reserve), (Room::Empty, &Reserve::default()));
    let buffers = || [read(&by_template(3), &template("1", "1Gi"), None).unwrap()];
    let empty = world_of(&[class(), pool("default", json!([]))], buffers());
    let (solution, reserve) = kept(&empty);
    assert!(solution.nodes.is_empty() && !reserve.nodes.is_empty() && reserve.unschedulable.is_empty());
    assert_eq!(room(&empty, &reserve), Room::Lacking { launching: 3, refused: 0, pods: 3 });
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    let there = world_of(&objects, buffers());
    let (_, reserve) = kept(&there);
    assert_eq!((room(&there, &reserve), reserve.nodes.len()), (Room::Fits { pods: 3 }, 0));
    // a pod that comes takes the room, and the buffer wants new
    objects.push(pending("comes", "2", "1Gi"));
    let taken = world_of(&objects, buffers());
    let (solution, reserve) = kept(&taken);
    assert_eq!((solution.placements.len(), solution.nodes.len()), (1, 0));
    assert_eq!(room(&taken, &reserve), Room::Lacking { launching: 2, refused: 0, pods: 3 });
}

#[test]
fn room_on_nodes_just_planned_is_used() {
    let metal = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.2xlarge"]}]);
    let world = world_of(
        &[class(), pool("default", metal), pending("a", "4", "1Gi")],
        [read(&by_template(4), &template("1500m", "1Gi"), None).unwrap()],
    );
    let (solution, reserve) = kept(&world);
    assert_eq!((solution.nodes.len(), reserve.joining.len(), reserve.nodes.len()), (1, 2, 1), "{reserve:?}");
    assert!(reserve.joining.iter().all(|(_, at)| *at == 0));
}

#[test]
fn disruption_leaves_the_room_alone() {
    let alike = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let mut objects = vec![class(), pool("default", alike)];
    objects.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    let world = world_of(&objects, [read(&by_template(3), &template("1", "1Gi"), None).unwrap()]);
    let deleted = |snapshot: &Snapshot| !plan_disruption(snapshot).commands.is_empty();
    assert!(deleted(&world), "an empty node goes where nobody minds the buffer");
    let (_, reserve) = kept(&world);
    assert!(!deleted(&reserve.occupied(&world)));
    assert!(!deleted(&with_room_taken(world)));
    let small = world_of(&objects, [read(&by_template(0), &template("1", "1Gi"), None).unwrap()]);
    let (_, reserve) = kept(&small);
    assert!(deleted(&reserve.occupied(&small)));
}

/// Room moves, but nobody is evicted for it.
#[test]
fn virtual_pods_are_no_evictions() {
    let types = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let mut objects = vec![class(), pool("default", types)];
    for name in ["n1", "n2"] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let stays = json!({"karpenter.sh/do-not-disrupt": "true"});
    objects.push(with(running("a", "n1", "2", "1Gi"), &[("metadata.annotations", stays)]));
    objects.push(running("b", "n2", "1", "1Gi"));
    let mut world = world_of(&objects, [read(&by_template(1), &template("500m", "1Gi"), None).unwrap()]);
    // the room is on the node that goes
    let room = world.buffers[0].pods().next().unwrap();
    let on =
        Pod { node: Some("n2".into()), phase: Phase::Running, unschedulable: false, ready: true, ..(*room).clone() };
    world.pods.push(Arc::new(on));
    let plan = plan_disruption(&world);
    let [command] = &*plan.commands else { panic!("{plan:?}") };
    assert_eq!((command.candidates[0].node.as_deref(), command.placements.len()), (Some("n2"), 2));
    assert_eq!(command.evictions(&world), 1);
    assert_eq!(until_stable(&world, Method::Sets).evictions(), 1);
}

fn static_pool(count: u64) -> Value {
    with(pool("fixed", json!([])), &[("spec.replicas", json!(count))])
}

fn plan(objects: &[Value]) -> ReplicaPlan {
    replicas(&snapshot(objects, catalogue(TYPES)), &BTreeSet::new())
}

#[test]
fn static_pools_are_filled_whatever_pods_wait() {
    let daemon = json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"}, "spec": {"selector": {}, "template": {"spec":
        {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}]}}}});
    let mut objects = vec![class(), static_pool(3), daemon, pending("p", "1", "1Gi")];
    objects.extend(node("n1", "fixed", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    assert!(solution.nodes.is_empty(), "pods do not grow a static pool, they use its nodes");
    assert_eq!(solution.placements.len(), 1);
    let plan = plan(&objects);
    assert_eq!((plan.create.len(), plan.delete.len(), plan.short.len()), (2, 0, 0));
    for node in &plan.create {
        assert!(node.pods.is_empty() && &*node.pool == "fixed" && node.instance_types().len() > 1);
        assert!(!node.instance_types().iter().any(|name| &**name == "t3.nano"), "it cannot hold the daemon");
        assert_eq!(node.requests.get("cpu").to_string(), "100m");
    }
}

#[test]
fn static_pools_stop_at_their_limit_and_say_so() {
    let limited = with(static_pool(5), &[("spec.limits", json!({"nodes": 3}))]);
    let mut objects = vec![class(), limited];
    objects.extend(node("n1", "fixed", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    let limited = plan(&objects);
    assert_eq!(limited.create.len(), 2);
    assert!(matches!(&*limited.short, [(pool, Misfit::Limit { .. })] if &**pool == "fixed"), "{:?}", limited.short);
    let nowhere = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["nowhere"]}]);
    let nowhere = plan(&[class(), with(pool("fixed", nowhere), &[("spec.replicas", json!(2))])]);
    assert!(nowhere.create.is_empty() && nowhere.short.len() == 1, "{:?}", nowhere.short);
    let classless = plan(&[static_pool(1)]);
    assert!(matches!(&*classless.short, [(_, Misfit::ClassNotReady { .. })]));
}

#[test]
fn static_pools_give_back_what_is_the_least_loss() {
    let types = ["busy", "guarded", "empty", "cheap"];
    let mut objects = vec![class()];
    for name in types {
        objects.extend(node(name, "fixed", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    }
    objects.push(json!({"kind": "NodeClaim", "apiVersion": "karpenter.sh/v1", "metadata": {"name": "fixed-coming", "uid": "c", "labels": {"karpenter.sh/nodepool": "fixed"}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}));
    objects.extend((0..3).map(|n| running(&format!("b{n}"), "busy", "100m", "64Mi")));
    objects.push(running("c", "cheap", "100m", "64Mi"));
    objects.push(with(
        running("g", "guarded", "100m", "64Mi"),
        &[("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}))],
    ));
    let order = |count: u64, replaced: &[&str]| {
        let world = snapshot(&[vec![static_pool(count)], objects.clone()].concat(), catalogue(TYPES));
        let replaced = replaced.iter().map(|name| Arc::from(*name)).collect();
        replicas(&world, &replaced).delete.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(order(0, &[]), ["fixed-coming", "fixed-empty", "fixed-cheap", "fixed-busy", "fixed-guarded"]);
    assert_eq!(order(3, &[]), ["fixed-coming", "fixed-empty"]);
    assert_eq!(order(4, &["fixed-busy"]), Vec::<String>::new());
    assert_eq!(order(9, &[]), Vec::<String>::new());
}

fn a_buffer() -> impl Strategy<Value = Buffer> {
    (a_pod(), 0_u32..6).prop_map(|(pod, replicas)| {
        let template = json!({"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]});
        read(&by_template(replicas), &template, None).unwrap()
    })
}

proptest! {
    #![proptest_config(deep::cases(100))]

    /// Virtual pods are answered once each, in places that the judges accept, and on top of what real pods and limits leave.
    #[test]
    fn virtual_pods_never_displace_real_ones(objects in a_cluster(), buffer in a_buffer()) {
        let real = world_of(&objects, []);
        let world = world_of(&objects, [buffer]);
        let (solution, reserve) = kept(&world);
        prop_assert_eq!(&solution, &solve(&real));
        let virtual_pods: Vec<_> = world.buffers[0].pods().collect();
        let planned = reserve.nodes.iter().flat_map(|node| &node.pods).chain(reserve.placements.iter().map(|p| &p.pod));
        let planned = planned.chain(reserve.joining.iter().map(|(pod, _)| pod));
        let mut answered: Vec<&PodKey> = planned.chain(reserve.unschedulable.iter().map(|u| &u.pod)).collect();
        answered.sort();
        let mut expected: Vec<&PodKey> = virtual_pods.iter().map(|pod| &pod.key).collect();
        expected.sort();
        prop_assert_eq!(answered, expected);
        // together they are an answer to a cluster in which the virtual pods wait like others
        let mut all = world;
        all.pods.extend(virtual_pods);
        let mut together = solution;
        together.placements.extend(reserve.placements.iter().cloned());
        for (pod, at) in &reserve.joining {
            together.nodes[*at].pods.push(pod.clone());
        }
        together.nodes.extend(reserve.nodes.iter().cloned());
        // why a pod is refused is told of the moment when it was its turn: only the places are judged
        let refused: BTreeSet<PodKey> = together.unschedulable.iter().chain(&reserve.unschedulable).map(|u| u.pod.clone()).collect();
        together.unschedulable.clear();
        all.pods.retain(|pod| !refused.contains(&pod.key));
        judge::judge(&all, &together);
    }

    #[test]
    fn static_pools_never_pass_their_replicas(objects in a_cluster(), count in 0_u64..6) {
        let mut world = snapshot(&objects, catalogue(TYPES));
        for pool in &mut world.pools {
            Arc::make_mut(pool).replicas = Some(count);
        }
        let plan = replicas(&world, &BTreeSet::new());
        for pool in &world.pools {
            let there = world.claims.iter().filter(|claim| claim.pool.as_ref() == Some(&pool.name)).count();
            let made = plan.create.iter().filter(|node| node.pool == pool.name).count();
            let gone = plan.delete.iter().filter(|name| name.starts_with(&format!("{}-", pool.name))).count();
            let after = (there + made - gone) as u64;
            let short = plan.short.iter().any(|(name, _)| *name == pool.name);
            prop_assert!(made == 0 || gone == 0);
            prop_assert!(if short { after < count } else { after == count }, "{} of {}", after, count);
        }
    }
}
