//! A teardown that is led astray, or comes after one that was broken off.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use tfplugin::Value;
use tfplugin::testing::{Core, Outcome};

use super::moved::{OF_THE_CLUSTER, cluster, configured, serve, serve_all};

const KIND: &str = "karp_teardown";
const ARN: &str = "arn:aws:eks:eu-west-1:111122223333:cluster/prod";
const TAGS: &str = "<tagSet><item><key>kubernetes.io/cluster/prod</key><value>owned</value></item>\
                    <item><key>karpenter.k8s.aws/ec2nodeclass</key><value>default</value></item></tagSet>";

type Seen = Arc<Mutex<Vec<String>>>;

/// An API server of a cluster with at most one NodeClaim, and the requests that change something.
fn api_server(uid: &'static str, claim: Option<Json>) -> (String, Seen) {
    let changes = Seen::default();
    let seen = Arc::clone(&changes);
    let host = serve_all(move |request| {
        if request.starts_with(OF_THE_CLUSTER) {
            return cluster(uid);
        }
        let line = request.lines().next().unwrap_or_default();
        if !line.starts_with("GET ") {
            seen.lock().unwrap().push(line.to_owned());
        }
        match &claim {
            Some(claim) if line.contains("/nodeclaims/") => claim.to_string(),
            claim => {
                let items: Vec<&Json> = claim.iter().filter(|_| line.contains("/nodeclaims")).collect();
                json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }).to_string()
            }
        }
    });
    (host, changes)
}

/// EC2, which answers an action as told, and an unknown one by an error; and the actions that came. Instances may be asked for by id.
fn ec2(answer: impl Fn(&str, bool) -> Option<String> + Send + 'static) -> (String, Seen) {
    let actions = Seen::default();
    let seen = Arc::clone(&actions);
    let host = serve(move |request| {
        let action = request.split("Action=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
        seen.lock().unwrap().push(action.to_owned());
        answer(action, request.contains("Name=instance-id")).unwrap_or_else(|| "<ErrorResponse/>".to_owned())
    });
    (host, actions)
}

/// How EC2 lists one instance of the cluster in a state, or none.
fn instances(state: Option<&str>) -> String {
    let one = state.map_or_else(String::new, |state| {
        format!(
            "<item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>{state}</name></instanceState>{TAGS}</item>\
             </instancesSet></item>"
        )
    });
    format!("<DescribeInstancesResponse><reservationSet>{one}</reservationSet></DescribeInstancesResponse>")
}

/// EKS with a cluster at an address.
fn eks(endpoint: String) -> String {
    serve(move |_| {
        json!({ "cluster": {
            "name": "prod", "arn": ARN, "status": "ACTIVE", "version": "1.33", "endpoint": endpoint,
            "certificateAuthority": { "data": "" },
        } })
        .to_string()
    })
}

async fn destroyed(core: &Core, sweep: &[&str]) -> Outcome {
    let state = json!({
        "id": "prod", "cluster_name": "prod", "dry_run": false, "force": false, "drain_timeout": "1s", "sweep": sweep,
    });
    core.destroy(KIND, &core.config(KIND, &Value::from(state))).await
}

/// By wrong tags nothing is found of what NodeClaims stand for.
#[tokio::test]
async fn what_stands_for_an_instance_that_lives_is_not_let_go_of() {
    for (zone, state, refusal) in [
        ("eu-west-1a", Some("running"), Some("NodeClaim a (i-1)")),
        ("us-west-2b", Some("running"), Some("lives in region \"us-west-2\"")),
        ("eu-west-1a", Some("terminated"), None),
        ("eu-west-1a", None, None),
    ] {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "a", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["karpenter.sh/termination"] },
            "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [] },
            "status": { "providerID": format!("aws:///{zone}/i-1") },
        });
        let (host, changes) = api_server("one", Some(claim));
        let (ec2, _) =
            ec2(move |action, by_id| (action == "DescribeInstances").then(|| instances(state.filter(|_| by_id))));
        let core = configured(json!({ "kubernetes": { "host": host }, "endpoints": { "ec2": ec2 } })).await;
        let done = destroyed(&core, &["instances"]).await;
        let (told, changes) = (done.diagnostics.to_string(), changes.lock().unwrap().clone());
        match refusal {
            Some(refusal) => {
                assert!(done.diagnostics.has_errors() && told.contains(refusal), "{zone}, {state:?}: {told}");
                assert_eq!(changes, [] as [&str; 0], "{zone}, {state:?}: it was let go of");
            }
            None => {
                assert!(
                    !done.diagnostics.has_errors() && told.contains("1 NodeClaim (a)"),
                    "{zone}, {state:?}: {told}"
                );
                assert!(changes.iter().any(|call| call.starts_with("PATCH ")), "{zone}, {state:?}: {changes:?}");
            }
        }
    }
}

/// A run that was broken off has asked EC2 to end an instance; its volume is free only when it has ended.
#[tokio::test]
async fn an_instance_that_is_shutting_down_already_is_waited_for() {
    let (host, _) = api_server("one", None);
    let looks = AtomicUsize::new(0);
    let (ec2, actions) = ec2(move |action, by_id| match action {
        "DescribeInstances" if by_id => {
            // the first look finds it on its way
            let first = looks.fetch_add(1, Ordering::SeqCst) == 0;
            Some(instances(Some(if first { "shutting-down" } else { "terminated" })))
        }
        "DescribeInstances" => Some(instances(Some("shutting-down"))),
        "DescribeVolumes" => {
            let free = format!("<item><volumeId>vol-1</volumeId><status>available</status>{TAGS}</item>");
            let free = if looks.load(Ordering::SeqCst) > 1 { &*free } else { "" };
            Some(format!("<DescribeVolumesResponse><volumeSet>{free}</volumeSet></DescribeVolumesResponse>"))
        }
        "DeleteVolume" => Some("<DeleteVolumeResponse><return>true</return></DeleteVolumeResponse>".to_owned()),
        _ => None,
    });
    let core = configured(json!({ "kubernetes": { "host": host }, "endpoints": { "ec2": ec2 } })).await;
    let done = destroyed(&core, &["instances", "volumes"]).await;
    let told = done.diagnostics.to_string();
    assert!(!done.diagnostics.has_errors() && told.contains("Ended in AWS: 1 volume (vol-1)"), "{told}");
    let actions = actions.lock().unwrap();
    assert!(!actions.iter().any(|action| action == "TerminateInstances"), "it ends already: {actions:?}");
    assert_eq!(actions.iter().filter(|action| *action == "DeleteVolume").count(), 1, "{actions:?}");
}

/// Where EKS had the cluster is known when it was made so; else a warning tells that there was none.
#[tokio::test]
async fn where_no_cluster_is_a_teardown_is_refused_or_warns() {
    let elsewhere = |region: &str, account: &str| format!("arn:aws:eks:{region}:{account}:cluster/prod");
    for (arn, told) in [
        (None, "warning: EKS has no cluster \"prod\" in eu-west-1"),
        (Some(ARN.to_owned()), "warning: EKS has no cluster \"prod\" in eu-west-1"),
        (Some(elsewhere("us-west-2", "111122223333")), "it lives in region \"us-west-2\""),
        (Some(elsewhere("eu-west-1", "444455556666")), "it lives in account 444455556666"),
    ] {
        let (ec2, actions) = ec2(|action, _| (action == "DescribeInstances").then(|| instances(None)));
        let sts = serve(|_| {
            "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:iam::111122223333:user/a</Arn><Account>111122223333</Account>\
             </GetCallerIdentityResult></GetCallerIdentityResponse>"
                .to_owned()
        });
        let eks = super::eks_without_clusters();
        let core = configured(json!({ "endpoints": { "ec2": ec2, "eks": eks, "sts": sts } })).await;
        let kept = arn.as_ref().map(|arn| json!({ "cluster_arn": arn }).to_string());
        core.keep(kept.unwrap_or_default().into_bytes());
        let done = destroyed(&core, &["instances"]).await;
        let (answer, refused) = (done.diagnostics.to_string(), told.starts_with("it lives"));
        assert!(answer.contains(told), "{arn:?}: {answer}");
        assert_eq!((done.diagnostics.has_errors(), done.state.is_null()), (refused, !refused), "{arn:?}: {answer}");
        assert_eq!(actions.lock().unwrap().is_empty(), refused, "{arn:?}: whether anything was looked for there");
    }
}

#[tokio::test]
async fn a_teardown_made_by_way_of_eks_knows_where_its_cluster_is() {
    let (host, _) = api_server("one", None);
    let core = configured(json!({ "endpoints": { "eks": eks(host) } })).await;
    let made = core.apply(KIND, &Value::Null, &Value::from(json!({ "cluster_name": "prod" }))).await;
    let private = String::from_utf8_lossy(&made.private).into_owned();
    assert!(private.contains(ARN) && private.contains("\"one\""), "{private}: {}", made.diagnostics);
}

/// The name is that of one cluster, and `kubernetes` leads to another: whose instances would be ended?
#[tokio::test]
async fn instances_of_another_cluster_than_that_of_the_kubernetes_block_are_left() {
    for (reached, refused) in [("one", true), ("two", false)] {
        let (theirs, _) = api_server("two", None);
        let (host, changes) = api_server(reached, None);
        let (ec2, actions) = ec2(|action, by_id| match action {
            "DescribeInstances" => Some(instances(Some(if by_id { "terminated" } else { "running" }))),
            "TerminateInstances" => Some("<TerminateInstancesResponse></TerminateInstancesResponse>".to_owned()),
            _ => None,
        });
        let endpoints = json!({ "ec2": ec2, "eks": eks(theirs) });
        let core = configured(json!({ "kubernetes": { "host": host }, "endpoints": endpoints })).await;
        let done = destroyed(&core, &["instances"]).await;
        let told = done.diagnostics.to_string();
        assert_eq!((done.diagnostics.has_errors(), done.state.is_null()), (refused, !refused), "{reached}: {told}");
        assert_eq!(told.contains("another cluster than EKS has under this name"), refused, "{reached}: {told}");
        let ended = actions.lock().unwrap().iter().any(|action| action == "TerminateInstances");
        assert_eq!(ended, !refused, "{reached}: {told}");
        assert_eq!(*changes.lock().unwrap(), [] as [&str; 0], "{reached}");
    }
}
