//! A provider block that has come to lead to another cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tfplugin::Value;
use tfplugin::testing::{Core, Outcome};

use super::moved::{OF_THE_CLUSTER, cluster, configured, serve_all};

/// An API server with one pool, of a cluster whose UID, where it may be read, can be changed; and the requests that came, but for that.
struct Cluster {
    uid: Arc<Mutex<Option<&'static str>>>,
    asked: Arc<Mutex<Vec<String>>>,
    host: String,
}

impl Cluster {
    fn of(uid: &'static str) -> Self {
        let (uid, asked) = (Arc::new(Mutex::new(Some(uid))), Arc::new(Mutex::new(Vec::new())));
        let (own, seen) = (Arc::clone(&uid), Arc::clone(&asked));
        let host = serve_all(move |request| answer(request, *own.lock().unwrap(), &seen));
        Self { uid, asked, host }
    }

    /// A provider block that leads there.
    async fn provider(&self, more: Json) -> Core {
        let mut block = json!({ "kubernetes": { "host": self.host } });
        for (name, value) in more.as_object().unwrap() {
            block[name] = value.clone();
        }
        configured(block).await
    }
}

fn answer(request: &str, uid: Option<&str>, asked: &Mutex<Vec<String>>) -> String {
    if request.starts_with(OF_THE_CLUSTER) {
        return match uid {
            Some(uid) => cluster(uid),
            None => json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden",
                "message": "no", "code": 403 })
            .to_string(),
        };
    }
    asked.lock().unwrap().push(request.lines().next().unwrap_or_default().to_owned());
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "default", "uid": "pool", "resourceVersion": "7" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
        } } },
    })
    .to_string()
}

fn refused(outcome: &Outcome) -> String {
    let told = outcome.diagnostics.to_string();
    assert!(outcome.diagnostics.has_errors() && !outcome.state.is_null(), "{told}");
    assert!(told.contains("Another cluster") && told.contains("missing_cluster = \"forget\""), "{told}");
    told
}

#[tokio::test]
async fn what_lives_in_another_cluster_is_left_alone() {
    let api = Cluster::of("one");
    let core = api.provider(json!({})).await;
    let first = core.import("karp_node_pool", "default").await;
    let private = first.private.clone();
    let state = first.expect_state();
    assert!(String::from_utf8_lossy(&private).contains("\"one\""), "the state knows where it was found");

    *api.uid.lock().unwrap() = Some("two");
    api.asked.lock().unwrap().clear();
    let core = api.provider(json!({})).await;
    core.keep(private.clone());
    let told = refused(&core.read("karp_node_pool", &state).await);
    assert!(told.contains("is two, and was one"), "{told}");
    // with -refresh=false nothing was read before
    let core = api.provider(json!({ "offline_plan": true })).await;
    core.keep(private.clone());
    let config = json!({ "name": "default", "weight": 7, "template": {
        "node_class_ref": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
        "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }]
    } });
    refused(&core.apply("karp_node_pool", &state, &Value::from(config)).await);
    refused(&core.destroy("karp_node_pool", &state).await);
    assert_eq!(*api.asked.lock().unwrap(), [] as [&str; 0], "nothing was done there");

    // the way out: the old cluster is gone, and this one has its name
    let core = api.provider(json!({ "missing_cluster": "forget" })).await;
    core.keep(private);
    let forgotten = core.read("karp_node_pool", &state).await;
    let told = forgotten.diagnostics.to_string();
    assert!(!forgotten.diagnostics.has_errors() && forgotten.state.is_null(), "{told}");
    assert!(told.contains("warning: Forgotten with its cluster"), "{told}");
}

#[tokio::test]
async fn a_state_of_an_earlier_version_learns_where_it_lives() {
    let api = Cluster::of("one");
    let core = api.provider(json!({})).await;
    let state = core.import("karp_node_pool", "default").await.expect_state();
    let learnt = core.read("karp_node_pool", &state).await;
    assert!(String::from_utf8_lossy(&learnt.private).contains("\"one\""));
    core.keep(learnt.private.clone());
    assert_eq!(core.read("karp_node_pool", &state).await.expect_state(), state);
}

#[tokio::test]
async fn whoever_may_not_ask_which_cluster_it_is_goes_without() {
    let api = Cluster::of("one");
    *api.uid.lock().unwrap() = None;
    let core = api.provider(json!({})).await;
    let found = core.import("karp_node_pool", "default").await;
    assert!(found.private.is_empty());
    assert_eq!(found.expect_state().get("name").as_str(), Some("default"));
}

#[tokio::test]
async fn nothing_of_any_kind_is_read_or_ended_in_another_cluster() {
    let pool =
        json!({ "name": "default", "template": { "node_class_ref": { "name": "default" }, "requirements": [] } });
    let class = json!({
        "name": "default", "role": "nodes", "ami_selector_terms": [{ "alias": "al2023@latest" }],
        "subnet_selector_terms": [{ "id": "subnet-1" }], "security_group_selector_terms": [{ "id": "sg-1" }],
    });
    let overlay = json!({ "name": "default", "requirements": [], "price_adjustment": "-5%" });
    let of_kinds = [
        ("karp_node_pool", pool),
        ("karp_node_class", class),
        ("karp_node_overlay", overlay),
        ("karp_crds", json!({ "id": "karpenter.sh", "keep_on_destroy": false })),
        ("karp_controller", json!({ "id": "karp/karpenter", "image": "karp:1" })),
        (
            "karp_aws_auth_entry",
            json!({ "id": "a", "role_arn": "arn:aws:iam::111122223333:role/a", "username": "a", "groups": [] }),
        ),
        (
            "karp_teardown",
            json!({ "id": "prod", "cluster_name": "prod", "dry_run": false, "force": false, "drain_timeout": "1s" }),
        ),
    ];
    let api = Cluster::of("two");
    for (kind, state) in of_kinds {
        let core = api.provider(json!({})).await;
        core.keep(br#"{"cluster_uid":"one"}"#.to_vec());
        let state = core.config(kind, &Value::from(state));
        if kind != "karp_teardown" {
            refused(&core.read(kind, &state).await);
        }
        refused(&core.destroy(kind, &state).await);
        assert_eq!(*api.asked.lock().unwrap(), [] as [&str; 0], "{kind}: nothing was done there");
    }
}

/// Ctrl-C is heeded between the objects: those that are left go with the next run.
#[tokio::test]
async fn a_run_that_is_stopped_deletes_no_more_of_the_controller() {
    let (asked, held) = (Arc::new(Mutex::new(Vec::<String>::new())), Arc::new(AtomicBool::new(true)));
    let (seen, holds) = (Arc::clone(&asked), Arc::clone(&held));
    let host = serve_all(move |request| {
        let told = answer(request, Some("one"), &seen);
        while request.starts_with("DELETE ") && holds.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        told
    });
    let core = configured(json!({ "kubernetes": { "host": host } })).await;
    let state = json!({ "id": "karp/karpenter", "namespace": "karp", "image": "karp:1", "force": true });
    let state = core.config("karp_controller", &Value::from(state));
    let deletions = || asked.lock().unwrap().iter().filter(|call| call.starts_with("DELETE ")).count();
    let stop = async {
        let begun = async {
            while deletions() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), begun).await.expect("one object goes");
        core.stop().await;
        held.store(false, Ordering::SeqCst);
    };
    let (stopped, ()) = tokio::join!(core.destroy("karp_controller", &state), stop);
    let told = stopped.diagnostics.to_string();
    assert!(told.contains("Interrupted: could not delete") && !stopped.state.is_null(), "{told}");
    assert_eq!(deletions(), 1, "{:?}", asked.lock().unwrap());

    // nor is anything waited for after a stop
    let again = core.destroy("karp_controller", &state).await;
    let told = again.diagnostics.to_string();
    assert!(told.contains("Stopped") && !again.state.is_null() && deletions() == 1, "{told}");
}

/// The teardown belongs to a cluster, too: once that is another, a later destroy would end what lives in this one, or nothing at all.
#[tokio::test]
async fn a_teardown_is_forgotten_with_its_cluster_and_made_anew_for_the_next() {
    let api = Cluster::of("one");
    let config = Value::from(json!({ "cluster_name": "prod" }));
    let core = api.provider(json!({})).await;
    let made = core.apply("karp_teardown", &Value::Null, &config).await;
    let private = made.private.clone();
    assert!(String::from_utf8_lossy(&private).contains("\"one\""), "it knows whose nodes it ends");
    let state = made.expect_state();

    *api.uid.lock().unwrap() = Some("two");
    let core = api.provider(json!({ "missing_cluster": "forget" })).await;
    core.keep(private.clone());
    let forgotten = core.read("karp_teardown", &state).await;
    let told = forgotten.diagnostics.to_string();
    assert!(!forgotten.diagnostics.has_errors() && forgotten.state.is_null(), "{told}");
    assert!(told.contains("warning: Forgotten with its cluster"), "{told}");
    let core = api.provider(json!({ "missing_cluster": "forget" })).await;
    let again = core.apply("karp_teardown", &Value::Null, &config).await;
    assert!(String::from_utf8_lossy(&again.private).contains("\"two\""));
    // one that is destroyed in the same run ends nothing, dry or not
    for dry in [false, true] {
        let core = api.provider(json!({ "missing_cluster": "forget" })).await;
        core.keep(private.clone());
        let gone = core.destroy("karp_teardown", &state.clone().with("dry_run", dry)).await;
        let told = gone.diagnostics.to_string();
        assert!(!gone.diagnostics.has_errors() && told.contains("nothing of it was ended"), "{told}");
    }
}
