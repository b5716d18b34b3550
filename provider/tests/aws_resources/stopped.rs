//! Runs that are stopped: by Ctrl-C, after which OpenTofu ends within seconds with state of all that exists, and by the death of the
//! provider's process between a call and its answer. Either way the next apply comes to an empty plan, and the destroy leaves nothing.
//! (Deaths at random moments are in `killed`.)

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stand::{FARGATE_SECONDS, Sandbox, Stand};
use crate::tofu::Run;

/// Resources that each test of a stopped run has of its own.
pub const RESOURCES: &str = r#"
resource "karp_node_role" "this" {
  name = "NAME-node"
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = karp_node_role.this.name
}
resource "karp_interruption_queue" "this" {
  name = "NAME"
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-fargate"
}
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
}
"#;
/// Each resource with its place in the emulator's inventory.
const KEPT: [(&str, &str, &str); 5] = [
    ("karp_node_role.this", "roles", "NAME-node"),
    ("karp_instance_profile.this", "instance_profiles", "NAME"),
    ("karp_interruption_queue.this", "queues", "NAME"),
    ("karp_fargate_pod_execution_role.this", "roles", "NAME-fargate"),
    ("karp_fargate_profile.this", "fargate_profiles", "CLUSTER/NAME"),
];
pub const APPLY: [&str; 3] = ["apply", "-json", "-auto-approve"];
pub const DESTROY: [&str; 3] = ["destroy", "-json", "-auto-approve"];
/// How soon OpenTofu ends after Ctrl-C when the provider waits for something.
const SOON: Duration = Duration::from_secs(5);
/// How long a call or a Fargate profile may take to be seen.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer is held back after the run was stopped.
const HELD: Duration = Duration::from_millis(500);
/// Seconds that a Fargate profile takes to come or to go: long enough to be stopped in the middle.
const LONG: f64 = 2.5;

/// Whom Ctrl-C reaches.
#[derive(Debug, Clone, Copy)]
enum Reach {
    /// The whole process group, as from a terminal.
    Group,
    /// OpenTofu alone, as from a supervisor.
    Alone,
}

/// While it lives, Fargate profiles take their time.
struct Slow<'a>(&'a Sandbox);

impl<'a> Slow<'a> {
    fn fargate(sandbox: &'a Sandbox) -> Self {
        sandbox.fargate_takes(LONG);
        Self(sandbox)
    }
}

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        self.0.fargate_takes(FARGATE_SECONDS);
    }
}

fn unique(test: &str) -> String {
    format!("s{}-{test}", std::process::id())
}

impl Sandbox {
    fn resources(&self, name: &str) -> String {
        let subnets = format!("{:?}", self.subnet_ids);
        self.provider("") + &RESOURCES.replace("NAME", name).replace("SUBNETS", &subnets)
    }

    fn has(&self, kind: &str, what: &str) -> bool {
        self.what_exists()[kind].as_array().is_some_and(|all| all.iter().any(|one| one == what))
    }

    /// Waits until an action was answered.
    fn await_call(&self, action: &str, since: u64) {
        let begin = Instant::now();
        while !self.calls(since).iter().any(|call| call["action"] == action) {
            assert!(begin.elapsed() < PATIENCE, "{action} was not called");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_profile_gone(&self, name: &str) {
        let begin = Instant::now();
        while self.has("fargate_profiles", &format!("{}/{name}", self.cluster)) {
            assert!(begin.elapsed() < PATIENCE, "the Fargate profile {name} stays");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Begins a run and presses Ctrl-C once an action was called.
    fn interrupt(&self, stand: &Stand<'_>, arguments: &[&str], action: &str, reach: Reach) -> Run {
        let since = self.last_call();
        let running = stand.begin(arguments);
        self.await_call(action, since);
        let pressed = Instant::now();
        let reached = match reach {
            Reach::Group => running.interrupt(),
            Reach::Alone => running.interrupt_alone(),
        };
        assert!(reached, "{reach:?}: it ended before");
        let run = running.end();
        assert!(pressed.elapsed() < SOON, "{reach:?}: it ended after {:?}: {}", pressed.elapsed(), run.text);
        assert_eq!(run.code, 1, "{reach:?}: {}", run.text);
        run
    }

    /// Holds that state has what exists, and nothing else.
    fn assert_kept(&self, stand: &Stand<'_>, name: &str) {
        for (address, kind, what) in KEPT {
            let exists = self.has(kind, &what.replace("NAME", name).replace("CLUSTER", &self.cluster));
            let known = stand.attribute(address, "id").is_string();
            assert_eq!(known, exists, "{address}: in state, and in AWS; {}", stand.state());
        }
    }
}

/// Holds that a run says that it was stopped, and what it was doing.
fn assert_says_stopped(run: &Run, doing: &str) {
    let errors = run.errors();
    let summary = |error: &&&serde_json::Value| error["summary"].as_str().unwrap_or_default().contains(doing);
    let told = errors.iter().find(summary).unwrap_or_else(|| panic!("{}", run.text));
    assert!(told["summary"].as_str().unwrap().starts_with("Interrupted"), "{}", run.text);
    assert!(told["detail"].as_str().unwrap().contains("Terraform asked to stop"), "{}", run.text);
}

#[test]
fn an_apply_that_is_interrupted_ends_soon_and_the_next_one_completes_it() {
    let Some(sandbox) = Sandbox::find("interrupted_apply") else { return };
    let before = sandbox.what_exists();
    for reach in [Reach::Group, Reach::Alone] {
        let name = unique(&format!("apply-{reach:?}").to_lowercase());
        let stand = sandbox.stand(&sandbox.resources(&name));
        let slow = Slow::fargate(&sandbox);
        let run = sandbox.interrupt(&stand, &APPLY, "CreateFargateProfile", reach);
        drop(slow);
        assert_says_stopped(&run, &format!("wait for Fargate profile {}:{name} to become ACTIVE", sandbox.cluster));
        sandbox.assert_kept(&stand, &name);
        stand.apply();
        stand.assert_empty_plan();
        stand.destroy();
        assert_eq!(sandbox.what_exists(), before, "{reach:?}: something is left");
    }
}

#[test]
fn a_destroy_that_is_interrupted_ends_soon_and_can_be_undone_or_completed() {
    let Some(sandbox) = Sandbox::find("interrupted_destroy") else { return };
    let before = sandbox.what_exists();
    let name = unique("destroy");
    let stand = sandbox.stand(&sandbox.resources(&name));
    stand.apply();
    for reach in [Reach::Group, Reach::Alone] {
        let slow = Slow::fargate(&sandbox);
        let run = sandbox.interrupt(&stand, &DESTROY, "DeleteFargateProfile", reach);
        drop(slow);
        assert_says_stopped(&run, &format!("wait for Fargate profile {}:{name} to be gone", sandbox.cluster));
        sandbox.assert_kept(&stand, &name);
        // A profile that EKS is deleting still counts as there.
        sandbox.await_profile_gone(&name);
        if matches!(reach, Reach::Group) {
            stand.apply();
            stand.assert_empty_plan();
        }
    }
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn what_a_call_in_flight_makes_is_kept() {
    let Some(sandbox) = Sandbox::find("in_flight") else { return };
    let before = sandbox.what_exists();
    let name = unique("flight");
    let stand = sandbox.stand(&sandbox.resources(&name));
    sandbox.door("POST", "/_karp/delay", &json!({ "action": "CreateRole", "seconds": 2.0 }).to_string());
    // The queue's first call comes while the roles are being created.
    sandbox.interrupt(&stand, &APPLY, "GetQueueUrl", Reach::Group);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    sandbox.assert_kept(&stand, &name);
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// Resources that wait for nothing once they are made, with the calls that make them.
const MADE_BY: [(&str, &str, &[&str]); 3] = [
    ("karp_access_entry.this", "  principal_arn = \"ROLE\"", &["CreateAccessEntry"]),
    (
        "karp_controller_role.this",
        "  name            = \"NAME\"\n  auth            = \"pod_identity\"\n  service_account = \"NAME\"\n  policy_mode     = \
         \"managed\"\n  node_role_arns  = [\"ROLE\"]",
        &["CreateRole", "CreatePolicy", "AttachRolePolicy", "CreatePodIdentityAssociation"],
    ),
    (
        "karp_pod_identity_association.this",
        "  namespace       = \"apps\"\n  service_account = \"NAME\"\n  role_arn        = \"ROLE\"",
        &["CreatePodIdentityAssociation"],
    ),
];

/// How the making of a resource is stopped while a call of it was carried out and not answered.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    CtrlC,
    Kill,
}

impl Sandbox {
    /// Begins an apply, and stops it while the answer of an action is held back. After Ctrl-C the answer still comes.
    fn cut(&self, stand: &Stand<'_>, action: &str, cut: Cut) {
        self.door("POST", "/_karp/hold", &json!({ "action": action }).to_string());
        let mut running = stand.begin(&APPLY);
        let begin = Instant::now();
        while self.door("GET", "/_karp/held", "")[action].is_null() {
            assert!(
                begin.elapsed() < PATIENCE && !running.is_over(),
                "{action} was not called: {}",
                running.end().text
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        match cut {
            Cut::CtrlC => assert!(running.interrupt()),
            Cut::Kill => running.kill_provider(),
        }
        if cut == Cut::CtrlC {
            std::thread::sleep(HELD);
        }
        let is_over = running.is_over();
        self.door("POST", "/_karp/release", &json!({ "action": action }).to_string());
        let released = Instant::now();
        let run = running.end();
        assert!(!is_over || cut == Cut::Kill, "{action}: it did not wait for the answer: {}", run.text);
        assert!(released.elapsed() < SOON, "{action}: it ended after {:?}: {}", released.elapsed(), run.text);
        assert_eq!(run.code, 1, "{action}: {}", run.text);
    }
}

#[tokio::test]
async fn what_is_made_without_a_wait_is_kept_too() {
    let Some(sandbox) = Sandbox::find("cut") else { return };
    let before = sandbox.what_exists();
    let iam = sandbox.iam().await;
    let node = unique("cut-node");
    let role = iam.create_role().role_name(&node).assume_role_policy_document("{}").send().await.unwrap();
    let with_role = sandbox.what_exists();
    for (address, text, calls) in MADE_BY {
        let (kind, label) = address.split_once('.').unwrap();
        for (action, cut) in calls.iter().flat_map(|action| [(action, Cut::CtrlC), (action, Cut::Kill)]) {
            let name = unique(&format!("cut-{cut:?}-{action}").to_lowercase());
            let text = text.replace("NAME", &name).replace("ROLE", role.role().unwrap().arn());
            let block = sandbox.provider("  adopt_existing = true");
            let stand = sandbox.stand(&format!("{block}resource {kind:?} {label:?} {{\n{text}\n}}\n"));
            sandbox.cut(&stand, action, cut);
            let is_known = stand.attribute(address, "id").is_string();
            assert!(is_known || cut == Cut::Kill, "{address}, {action}: not in state: {}", stand.state());
            stand.apply();
            stand.assert_empty_plan();
            stand.destroy();
            assert_eq!(sandbox.what_exists(), with_role, "{address}, {action}, {cut:?}: something is left");
        }
    }
    iam.delete_role().role_name(&node).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before);
}
