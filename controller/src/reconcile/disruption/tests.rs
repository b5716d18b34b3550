//! What a command remembers, and what is left when it is taken back.

use futures::FutureExt as _;

use super::super::testing::{Server, claim};
use super::*;

fn command() -> Command {
    let candidate = Candidate { claim: "a".into(), uid: "u".into(), node: None, pool: "p".into(), price: None };
    Command {
        cause: Cause::Empty,
        candidates: vec![candidate],
        placements: Vec::new(),
        replacements: Vec::new(),
        origin: None,
    }
}

#[test]
fn commands_are_remembered_while_they_run() {
    let command = command();
    let running = Running::default();
    running.add(&command);
    assert!(running.contains("a") && !running.contains("b") && !running.ends(&command));
    for cause in [Cause::Expired, Cause::Unhealthy] {
        let forced = Command { cause, ..command.clone() };
        assert!(!running.ends(&forced), "force does not wait for another command");
        running.add(&forced);
        assert!(running.ends(&forced), "once is enough");
    }
    running.remove(&command);
    assert!(!running.contains("a"));
}

#[tokio::test]
async fn a_command_that_panics_frees_its_nodes() {
    let context = Server::default().context().await;
    context.running.add(&command());
    let run = Run(context.clone(), command());
    let mut commands = JoinSet::new();
    commands.spawn(async move {
        let _run = run;
        panic!("a fault");
    });
    assert!(commands.join_next().await.expect("one").expect_err("it panicked").is_panic());
    assert!(!context.running.contains("a"));
    assert!(context.disrupt.notified().now_or_never().is_some(), "a pass is asked for");
}

#[tokio::test]
async fn a_replacement_that_waits_for_a_device_may_have_pods() {
    let claim = |name: &str| {
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name, "uid": name },
            "spec": { "requirements": [], "nodeClassRef": class },
            "status": { "providerID": format!("aws:///a/i-{name}") },
        })
    };
    let node = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": format!("node-{name}") },
            "spec": { "providerID": format!("aws:///a/i-{name}") },
        })
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default", "uid": "web" },
        "spec": { "nodeName": "busy", "containers": [{ "name": "c", "image": "pause" }] },
        "status": { "phase": "Running" },
    });
    let server = Server::of([claim("busy"), claim("idle"), claim("new"), node("busy"), node("idle"), pod]);
    let context = server.context().await;
    assert_eq!(["busy", "idle", "new", "never"].map(|name| has_pods(&context, name)), [true, false, false, false]);
}

#[tokio::test]
async fn a_replacement_that_no_watch_has_shown_is_taken_back_by_its_name() {
    let server = Server::default();
    let context = server.context().await;
    let made = |name: &str| {
        let metadata = json!({ "name": name, "uid": name, "annotations": { (labels::REPLACES): "{}" } });
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let spec = json!({ "requirements": [], "nodeClassRef": class });
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata, "spec": spec })
    };
    // made after the caches were filled; of the last one the creation was not answered, and it never came to be
    server.put(made("b"));
    server.put(made("c"));
    let names: Vec<Arc<str>> = ["b", "never"].map(Arc::from).into();
    roll_back(&context, &command(), Replacements::Delete(&names), &Failure::ReplacementGone).await;
    assert_eq!(server.asked("GET nodeclaims/b"), 1);
    assert_eq!(server.asked("DELETE nodeclaims/b"), 1);
    assert_eq!(server.asked("GET nodeclaims/never"), 1);
    assert_eq!(server.asked("DELETE nodeclaims/never"), 0);
    take_back(&context, Replacements::Keep(&["c".into()])).await;
    assert_eq!(server.asked("DELETE nodeclaims/c"), 0, "one that is under way stays");
    assert_eq!(server.get("nodeclaims/c")["metadata"]["annotations"], json!({}), "and is made for nothing any more");
}

/// The process that made them was killed, and none ran until it was too late to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacements_that_never_started_go_with_the_process_that_waited_for_them() {
    let made = |name: &str, planned: Timestamp| {
        let purpose = json!({ "cause": "Drifted", "candidates": {}, "replacements": 1, "planned": planned });
        let mut made = claim(name);
        made["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        made["metadata"]["annotations"] = json!({ (labels::REPLACES): purpose.to_string() });
        made
    };
    let server = Server::of([made("late", Timestamp::UNIX_EPOCH), made("new", Timestamp::now())]);
    let (context, mut commands) = (server.context().await, JoinSet::new());
    resume(&context, &mut commands).await;
    let asked = ["late", "new"].map(|name| server.asked(&format!("DELETE nodeclaims/{name}")));
    assert_eq!((asked, commands.len()), ([1, 0], 0));
}

/// One that a process leaves which is killed in between would be a node that nothing takes; and while nodes are tainted, their pods would be launched
/// for once it goes.
#[tokio::test]
async fn a_replacement_that_never_started_goes_as_what_it_is_when_nodes_are_free() {
    let made = |name: &str| {
        let mut made = claim(name);
        made["metadata"]["annotations"] = json!({ (labels::REPLACES): "{}" });
        made
    };
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n", "uid": "n" },
        "spec": { "providerID": "aws:///a/i-1", "taints": [effect::disrupted_taint()] },
    });
    let server = Server::of([made("stuck"), made("started"), node]);
    let context = server.context().await;
    let mut command = command();
    command.candidates[0].node = Some("n".into());
    let [stuck, started] = ["stuck", "started"].map(Arc::<str>::from);
    let all = [stuck.clone(), started];
    give_up(&context, &command, (&all, &[stuck]), &Failure::TooLate).await;
    let [free, gone] = ["PATCH nodes/n", "DELETE nodeclaims/stuck"].map(|what| server.turn(what));
    assert!(free.is_some() && free < gone, "{free:?} {gone:?}");
    let asked = |name: &str| server.asked(&format!("DELETE nodeclaims/{name}"));
    assert_eq!((asked("stuck"), asked("started")), (1, 0));
    let says = |name: &str| server.get(&format!("nodeclaims/{name}"))["metadata"]["annotations"].clone();
    assert_eq!(says("stuck"), json!({ (labels::REPLACES): "{}" }), "it goes as what it is");
    assert_eq!(says("started"), json!({}), "and is made for nothing any more");
}

#[tokio::test]
async fn what_a_command_does_is_told_on_its_replacements_and_nodes() {
    let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
    let claim = |name: &str, uid: &str| {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name, "uid": uid },
            "spec": { "requirements": [], "nodeClassRef": class },
        })
    };
    let node =
        json!({ "kind": "Node", "metadata": { "name": "n", "uid": "n" }, "spec": { "providerID": "aws:///a/i-1" } });
    let server = Server::of([claim("a", "u"), claim("new", "new"), node]);
    let context = server.context().await;
    let mut command = command();
    command.candidates[0].node = Some("n".into());
    tell_waiting(&context, &command, &["new".into()]);
    assert_eq!(server.told("DisruptionLaunching", "new").await, "Launching NodeClaim: Empty");
    let waiting = "Waiting on readiness to continue disruption: Empty";
    assert_eq!(server.told("DisruptionWaitingReadiness", "new").await, waiting);
    assert!(let_all_go(&context, &command).await);
    for about in ["a", "n"] {
        assert_eq!(server.told("DisruptionTerminating", about).await, "Disrupting NodeClaim: Empty");
    }
    assert_eq!(server.asked("DELETE nodeclaims/a"), 1);
}

#[tokio::test]
async fn why_a_node_is_disrupted_is_on_its_claim_until_the_command_is_taken_back() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n", "uid": "n" },
        "spec": { "providerID": "aws:///a/i-1" },
    });
    let mut claim = claim("a");
    claim["metadata"]["uid"] = json!("u");
    claim["status"] = json!({ "providerID": "aws:///a/i-1", "nodeName": "n" });
    let server = Server::of([claim, node]);
    let mut command = command();
    command.candidates[0].node = Some("n".into());
    let told = || {
        let all = server.get("nodeclaims/a")["status"]["conditions"].clone();
        let mut told = all.as_array().into_iter().flatten().filter(|one| one["type"] == conditions::DISRUPTION_REASON);
        told.next().map(|one| (one["status"].clone(), one["reason"].clone()))
    };
    let taints = || server.get("nodes/n")["spec"]["taints"].clone();
    let context = server.context().await;
    assert_eq!(taint(&context, &command).await, Ok(()));
    assert_eq!(told(), Some((json!("True"), json!("Empty"))));
    assert_eq!(taints(), json!([effect::disrupted_taint()]));
    // its caches are those of now
    let context = server.context().await;
    roll_back(&context, &command, Replacements::Keep(&[]), &Failure::ReplacementGone).await;
    assert_eq!((told(), taints()), (None, json!([])));
}

/// A claim that another writes in the moment in which its command is taken back keeps its condition, and its node has no taint that would tell.
#[tokio::test]
async fn a_claim_says_nothing_of_a_command_that_is_over() {
    let told = |name: &str| {
        let mut claim = claim(name);
        let since = "2026-01-01T00:00:00Z";
        let reason = json!({ "type": conditions::DISRUPTION_REASON, "status": "True", "lastTransitionTime": since });
        claim["status"] = json!({ "conditions": [reason] });
        claim
    };
    let mut recalled = told("recalled");
    recalled["metadata"]["annotations"] = json!({ (labels::INTERRUPTED_AT): "2026-01-01T00:00:00Z" });
    let server = Server::of([told("a"), told("over"), recalled]);
    let context = server.context().await;
    context.running.add(&command());
    remove_stale_reasons(&context).await;
    let says = |name: &str| {
        let all = server.get(&format!("nodeclaims/{name}"))["status"]["conditions"].clone();
        all.as_array().into_iter().flatten().any(|one| one["type"] == conditions::DISRUPTION_REASON)
    };
    assert_eq!(["a", "over", "recalled"].map(says), [true, false, true]);
}

/// A claim that no pool made, and its node, which has said for long whether it is ready.
fn alone(name: &str, expire_after: &str, ready: &str) -> [serde_json::Value; 2] {
    let (id, since) = (format!("aws:///us-east-1a/i-{name}"), "2025-01-01T00:00:00Z");
    let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": name, "uid": name, "creationTimestamp": since },
        "spec": { "requirements": [], "nodeClassRef": class, "expireAfter": expire_after },
        "status": { "providerID": id, "nodeName": name },
    });
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "uid": format!("node-{name}"), "labels": { (labels::INITIALIZED): "true" } },
        "spec": { "providerID": id },
        "status": { "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": since }] },
    });
    [claim, node]
}

/// What a process with node repair has whose API server this is.
async fn repairing(server: &Server) -> Arc<Context> {
    let mut context = server.context().await;
    let own = Arc::get_mut(&mut context).expect("nobody else has it");
    own.options.feature_gates = "NodeRepair=true".parse().expect("a gate");
    context
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_no_pool_made_goes_when_it_is_too_old_or_ill() {
    let all = [alone("old", "1h", "True"), alone("ill", "Never", "False"), alone("well", "Never", "True")];
    let server = Server::of(all.into_iter().flatten());
    let context = repairing(&server).await;
    let mut commands = JoinSet::new();
    pass(&context, &mut Decided::default(), &mut commands).await;
    for (name, cause) in [("old", "Expired"), ("ill", "Unhealthy")] {
        assert_eq!(server.told("DisruptionTerminating", name).await, format!("Disrupting NodeClaim: {cause}"));
    }
    while commands.join_next().await.is_some() {}
    assert_eq!(["old", "ill", "well"].map(|name| server.asked(&format!("DELETE nodeclaims/{name}"))), [1, 1, 0]);
    let note = server.told("DisruptionBlocked", "well").await;
    assert_eq!(note, "Cannot disrupt Node: its NodePool is gone or foreign");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_no_pool_made_are_not_repaired_where_too_many_of_the_cluster_are_ill() {
    let all = [alone("ill", "Never", "False"), alone("sick", "Never", "Unknown"), alone("well", "Never", "True")];
    let server = Server::of(all.into_iter().flatten());
    let context = repairing(&server).await;
    let mut commands = JoinSet::new();
    pass(&context, &mut Decided::default(), &mut commands).await;
    assert!(commands.is_empty());
    for name in ["ill", "sick"] {
        let note = server.told("NodeRepairBlocked", name).await;
        assert_eq!(note, "more than 20% nodes are unhealthy in the cluster (2 of 3)");
        assert_eq!(server.asked(&format!("DELETE nodeclaims/{name}")), 0);
    }
}
