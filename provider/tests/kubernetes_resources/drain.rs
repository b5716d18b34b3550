//! The nodes of a pool that is destroyed leave as its budgets allow, with events and one summary. A test stands in for the controller: it
//! takes the finalizer off NodeClaims that were asked to end, some time later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stand::{Cluster, Stand};
use crate::tofu::Run;
use crate::{CRDS, PROVIDER, claims, pool};

pub const DESTROY: [&str; 3] = ["destroy", "-json", "-auto-approve"];
/// Longer than any of these drains.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A pool whose budgets let so many nodes go at a time.
pub fn config(name: &str, nodes: &str, more: &str) -> String {
    let pool = pool(name, "null").replace("nodes = \"100%\"", &format!("nodes = {nodes:?}"));
    format!("{PROVIDER}{CRDS}{}", pool.replace("  wait_for_ready = false", &format!("  wait_for_ready = false{more}")))
}

/// A controller that lets claims go so long after they were asked to end; it saw so many on their way at most.
pub struct Controller {
    stop: AtomicBool,
    most: AtomicUsize,
}

impl Controller {
    /// Plays it while something else goes on.
    pub fn beside<T>(cluster: &Cluster, pool: &str, takes: Duration, act: impl FnOnce() -> T) -> (T, usize) {
        let controller = Self { stop: AtomicBool::new(false), most: AtomicUsize::new(0) };
        std::thread::scope(|scope| {
            scope.spawn(|| controller.play(cluster, pool, takes));
            let done = act();
            controller.stop.store(true, Ordering::Relaxed);
            (done, controller.most.load(Ordering::Relaxed))
        })
    }

    fn play(&self, cluster: &Cluster, pool: &str, takes: Duration) {
        let (begin, mut asked) = (Instant::now(), BTreeMap::new());
        while !self.stop.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
            let leaving = leaving(cluster, pool);
            self.most.fetch_max(leaving.len(), Ordering::Relaxed);
            for name in leaving {
                if asked.entry(name.clone()).or_insert_with(Instant::now).elapsed() >= takes {
                    let free = r#"{"metadata":{"finalizers":null}}"#;
                    cluster.kubectl(&["patch", "nodeclaim", &name, "--type=merge", "-p", free]);
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

pub fn claims_of(cluster: &Cluster, pool: &str) -> Vec<Value> {
    let found = cluster.get(&["nodeclaims", "-l", &format!("karpenter.sh/nodepool={pool}")]);
    found["items"].as_array().cloned().unwrap_or_default()
}

pub fn leaving(cluster: &Cluster, pool: &str) -> Vec<String> {
    let all = claims_of(cluster, pool).into_iter();
    let leaving = all.filter(|claim| !claim["metadata"]["deletionTimestamp"].is_null());
    leaving.map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Makes a pool with so many claims.
pub fn with_claims<'a>(cluster: &'a Cluster, name: &str, config: &str, count: usize) -> Stand<'a> {
    let stand = cluster.stand(config);
    stand.apply();
    stand.assert_empty_plan();
    for number in 0..count {
        make_claim(cluster, name, number);
    }
    stand
}

/// Makes a claim that only a controller lets go.
pub fn make_claim(cluster: &Cluster, pool: &str, number: usize) {
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" });
    cluster.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": format!("{pool}-{number}"), "finalizers": ["karpenter.sh/termination"],
            "labels": { "karpenter.sh/nodepool": pool } },
        "spec": { "nodeClassRef": class, "requirements": [] } }));
}

/// Holds that a destroy went through with one summary; gives it.
fn summary(run: &Run, name: &str) -> String {
    assert_eq!(run.code, 0, "{}", run.text);
    let title = format!("The nodes of NodePool {name:?} are drained");
    let warnings = run.warnings();
    let told: Vec<_> = warnings.iter().filter(|warning| warning["summary"] == title.as_str()).collect();
    assert_eq!(told.len(), 1, "{}", run.text);
    told[0]["detail"].as_str().unwrap().to_owned()
}

/// The events about a pool, with their reasons.
fn events(cluster: &Cluster, pool: &str) -> Vec<(String, String)> {
    let found = cluster.get(&["-n", "default", "events", "--field-selector", &format!("involvedObject.name={pool}")]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = found["items"].as_array().cloned().unwrap_or_default();
    all.iter().map(|event| (text(&event["reason"]), text(&event["message"]))).collect()
}

#[test]
fn nodes_leave_as_many_at_a_time_as_the_budgets_allow() {
    let Some(cluster) = Cluster::find("nodes_leave_as_many_at_a_time_as_the_budgets_allow") else { return };
    let _turn = claims();
    let name = cluster.unique("paced");
    let stand = with_claims(&cluster, &name, &config(&name, "2", ""), 5);
    let takes = Duration::from_millis(700);
    let (run, most) = Controller::beside(&cluster, &name, takes, || stand.tofu(&DESTROY));
    let told = summary(&run, &name);
    assert!(told.contains("5 nodes left within"), "{told}");
    assert!(told.contains("at most 2 at a time by the pool's budgets; none was forced"), "{told}");
    assert!(most <= 2, "{most} left at once");
    assert_eq!(cluster.get(&["nodepool", &name]), Value::Null);
    let events = events(&cluster, &name);
    for (reason, words) in [("Draining", "5 NodeClaims"), ("Drained", "5 nodes left")] {
        assert!(events.iter().any(|(known, note)| known == reason && note.contains(words)), "{reason}: {events:?}");
    }
}

#[test]
fn budgets_do_not_hold_a_drain_longer_than_half_of_its_time() {
    let Some(cluster) = Cluster::find("budgets_do_not_hold_a_drain_longer_than_half_of_its_time") else { return };
    let _turn = claims();
    let name = cluster.unique("hurried");
    // A budget that allows none would be a standstill: one goes at a time.
    let stand = with_claims(&cluster, &name, &config(&name, "0", "\n  timeouts = { delete = \"20s\" }"), 7);
    let takes = Duration::from_secs(2);
    let ((run, log), most) = Controller::beside(&cluster, &name, takes, || stand.tofu_with_log(&DESTROY));
    // The log tells of it as it goes on: what is done, and who is left.
    let waits = |line: &&str| line.contains("waiting to drain the nodes of NodePool") && line.contains("NodeClaim");
    let lines: Vec<&str> = log.lines().filter(waits).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&name)), "{log}");
    let told = summary(&run, &name);
    assert!(told.contains("7 nodes left") && told.contains("at most 1 at a time"), "{told}");
    assert!(told.contains("were asked to leave at once when half of `timeouts.delete` was over"), "{told}");
    assert!(most > 1, "nothing was hurried");
    assert!(events(&cluster, &name).iter().any(|(reason, _)| reason == "DrainHurried"));
}

#[test]
fn nodes_leave_at_once_and_nobody_waits_where_no_drain_is_wanted() {
    let Some(cluster) = Cluster::find("nodes_leave_at_once_and_nobody_waits") else { return };
    let _turn = claims();
    let name = cluster.unique("undrained");
    // Nobody lets the claims go: whoever waits for them, or for their turn, comes to the limit.
    let more = "\n  drain_on_destroy = false\n  timeouts = { delete = \"20s\" }";
    let stand = with_claims(&cluster, &name, &config(&name, "1", more), 3);
    let run = stand.tofu(&DESTROY);
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(!run.text.contains("are drained"), "{}", run.text);
    assert_eq!(cluster.get(&["nodepool", &name]), Value::Null);
    assert_eq!(leaving(&cluster, &name).len(), 3);
    (0..3).for_each(|number| cluster.hold(&["nodeclaim", &format!("{name}-{number}")], &Value::Null));
    assert!(claims_of(&cluster, &name).is_empty());
}

#[test]
fn a_drain_that_is_broken_off_can_be_undone_or_completed() {
    let Some(cluster) = Cluster::find("a_drain_that_is_broken_off_can_be_undone_or_completed") else { return };
    let _turn = claims();
    let name = cluster.unique("broken");
    let stand = with_claims(&cluster, &name, &config(&name, "1", ""), 3);
    let begun = || {
        let begin = Instant::now();
        while leaving(&cluster, &name).is_empty() {
            assert!(begin.elapsed() < PATIENCE, "no claim was asked to end");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let running = stand.begin(&DESTROY);
    begun();
    running.interrupt();
    let run = running.end();
    assert!(run.code == 1 && run.text.contains("Interrupted: could not drain the nodes"), "{}", run.text);
    assert_eq!(leaving(&cluster, &name).len(), 1);
    assert_eq!(cluster.get(&["nodepool", &name])["spec"]["limits"]["nodes"], "0", "it must not grow meanwhile");

    // An apply takes it back: the pool may grow again.
    let plan = stand.apply();
    assert_eq!(plan.changes(), [("update".to_owned(), "karp_node_pool.it".to_owned())], "{}", plan.text);
    stand.assert_empty_plan();
    let live = cluster.get(&["nodepool", &name]);
    assert_eq!(
        (&live["spec"]["limits"], &live["metadata"]["annotations"]["karp.sh/draining"]),
        (&Value::Null, &Value::Null)
    );

    // A provider that dies leaves the same, and the next destroy goes on.
    let mut running = stand.begin(&DESTROY);
    while cluster.get(&["nodepool", &name])["spec"]["limits"]["nodes"].is_null() {
        assert!(!running.is_over(), "it ended before");
        std::thread::sleep(Duration::from_millis(50));
    }
    running.kill_provider();
    assert_ne!(running.end().code, 0);
    let (run, _) = Controller::beside(&cluster, &name, Duration::ZERO, || stand.tofu(&DESTROY));
    summary(&run, &name);
    assert_eq!(cluster.get(&["nodepool", &name]), Value::Null);
}
