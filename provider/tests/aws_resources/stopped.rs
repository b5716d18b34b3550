//! Runs that are stopped: by Ctrl-C, after which OpenTofu ends within seconds with state of all that exists, and by the death of the
//! provider's process between a call and its answer. Either way the next apply comes to an empty plan, and the destroy leaves nothing.
//! (Deaths at random moments are in `killed`, changes and removals that Ctrl-C stops half-way in `interrupted`.)

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
/// How soon OpenTofu ends after Ctrl-C when the provider waits for something, on a machine that other tests are busy on too.
const SOON: Duration = Duration::from_secs(10);
/// How long a call or a Fargate profile may take to be seen.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer is held back after the run was stopped.
const HELD: Duration = Duration::from_millis(500);
/// Seconds that a Fargate profile takes to come or to go: more than [`SOON`], so a run that waits for it to the end is told from one that stops.
const LONG: f64 = 15.0;

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

pub fn unique(test: &str) -> String {
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

    /// Gives the name of the spot role where a state took it over: a destroy leaves it. An OIDC provider that a run began is its own.
    pub fn adopted_spot_role(&self, stand: &Stand<'_>) -> Option<String> {
        assert_ne!(stand.attribute("karp_oidc_provider.this", "adopted"), true, "{}", stand.state());
        let role = "karp_spot_service_linked_role.this";
        (stand.attribute(role, "adopted") == true).then(|| stand.attribute(role, "name").as_str().unwrap().to_owned())
    }

    /// Deletes what a destroy left of [`Self::adopted_spot_role`].
    pub async fn delete_role(&self, name: Option<String>) {
        if let Some(name) = name {
            self.iam().await.delete_role().role_name(name).send().await.unwrap();
        }
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
pub fn assert_says_stopped(run: &Run, doing: &str) {
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

/// Resources that wait for nothing once they are made. One role stays outside of it.
const MADE: &str = r#"
resource "karp_access_entry" "this" {
  principal_arn = "ROLE"
}
resource "karp_controller_role" "this" {
  name            = "NAME"
  auth            = "pod_identity"
  service_account = "NAME"
  policy_mode     = "managed"
  node_role_arns  = ["ROLE"]
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = "ROLE"
}
resource "karp_controller_policy" "this" {
  name = "NAME-policy"
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = "NODE"
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
}
resource "karp_oidc_provider" "this" {}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = true
}
"#;
/// The calls that make them and the resources that call them, each list held back as one: a call is only made once those of the lists
/// before it are answered, and each resource is at one of a list at most.
const MADE_BY: [&[(&str, &[&str])]; 4] = [
    &[
        ("CreateAccessEntry", &["access_entry"]),
        ("CreateInstanceProfile", &["instance_profile"]),
        ("CreateOpenIDConnectProvider", &["oidc_provider"]),
        ("CreatePodIdentityAssociation", &["pod_identity_association"]),
        ("CreatePolicy", &["controller_policy"]),
        ("CreateRole", &["controller_role"]),
        ("CreateServiceLinkedRole", &["spot_service_linked_role"]),
        ("CreateTags", &["discovery_tags"]),
    ],
    &[("AddRoleToInstanceProfile", &["instance_profile"]), ("CreatePolicy", &["controller_policy", "controller_role"])],
    &[("AttachRolePolicy", &["controller_role"])],
    &[("CreatePodIdentityAssociation", &["controller_role", "pod_identity_association"])],
];

/// How the making of a resource is stopped while a call of it was carried out and not answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    CtrlC,
    Kill,
}

impl Sandbox {
    /// Begins an apply, and stops it while the answers of actions are held back. After Ctrl-C the answers still come.
    pub fn cut(&self, stand: &Stand<'_>, calls: &[(&str, &[&str])], cut: Cut) {
        self.cut_run(stand, &APPLY, calls, || true, cut);
    }

    /// The same for any run, which is not stopped before something else was met, too.
    pub fn cut_run(
        &self,
        stand: &Stand<'_>,
        arguments: &[&str],
        calls: &[(&str, &[&str])],
        is_met: impl Fn() -> bool,
        cut: Cut,
    ) -> Run {
        let each = |door: &str| {
            for (action, _) in calls {
                self.door("POST", door, &json!({ "action": action }).to_string());
            }
        };
        each("/_karp/hold");
        let mut running = stand.begin(arguments);
        let begin = Instant::now();
        loop {
            let held = self.door("GET", "/_karp/held", "");
            if calls.iter().all(|(action, of)| held[action] == of.len()) && is_met() {
                break;
            }
            let in_time = begin.elapsed() < PATIENCE && !running.is_over();
            assert!(in_time, "of {calls:?} only {held} were called: {}", running.end().text);
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
        each("/_karp/release");
        let released = Instant::now();
        let run = running.end();
        assert!(!is_over || cut == Cut::Kill, "{calls:?}: it did not wait for the answers: {}", run.text);
        assert!(released.elapsed() < 2 * SOON, "{calls:?}: it ended after {:?}: {}", released.elapsed(), run.text);
        assert_eq!(run.code, 1, "{calls:?}: {}", run.text);
        run
    }
}

/// Nothing is adopted: after Ctrl-C state knows of all, and after a death the marks tell what was begun.
#[tokio::test]
async fn what_is_made_without_a_wait_is_kept_too() {
    let Some(sandbox) = Sandbox::find("cut") else { return };
    let before = sandbox.what_exists();
    let iam = sandbox.iam().await;
    let node = unique("cut-node");
    let role = iam.create_role().role_name(&node).assume_role_policy_document("{}").send().await.unwrap();
    let role = role.role().unwrap().arn();
    let with_role = sandbox.what_exists();
    for (step, calls) in MADE_BY.into_iter().enumerate() {
        for cut in [Cut::CtrlC, Cut::Kill] {
            let name = unique(&format!("cut-{cut:?}-{step}").to_lowercase());
            let text = MADE.replace("NAME", &name).replace("ROLE", role).replace("NODE", &node);
            let text = text.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
            let stand = sandbox.stand(&(sandbox.provider("") + &text));
            sandbox.cut(&stand, calls, cut);
            for kind in calls.iter().flat_map(|(_, of)| *of) {
                let is_known = stand.attribute(&format!("karp_{kind}.this"), "id").is_string();
                assert!(is_known || cut == Cut::Kill, "{calls:?}: {kind} is not in state: {}", stand.state());
            }
            stand.apply();
            stand.assert_empty_plan();
            let spot_role = sandbox.adopted_spot_role(&stand);
            assert!(cut == Cut::Kill || spot_role.is_none(), "{calls:?}: {spot_role:?} was not in state");
            stand.destroy();
            sandbox.delete_role(spot_role).await;
            assert_eq!(sandbox.what_exists(), with_role, "{calls:?}, {cut:?}: something is left");
            assert_eq!(sandbox.tagged(&name).await, vec![], "{calls:?}, {cut:?}: tags are left");
        }
    }
    iam.delete_role().role_name(&node).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before);
}

/// OpenTofu itself dies, so that nobody hears the provider, which lives on for a moment: what it had begun stays marked, and the next run goes on
/// with it.
#[test]
fn what_a_run_had_begun_that_died_itself_is_gone_on_with() {
    let Some(sandbox) = Sandbox::find("died") else { return };
    let before = sandbox.what_exists();
    let name = unique("died");
    let role = format!("resource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\n");
    let stand = sandbox.stand(&format!("PROVIDER\n{role}resource \"karp_oidc_provider\" \"this\" {{}}\n"));
    let each = |door: &str| {
        for action in ["CreateOpenIDConnectProvider", "CreateRole"] {
            sandbox.door("POST", door, &json!({ "action": action }).to_string());
        }
    };
    each("/_karp/hold");
    let mut running = stand.begin(&APPLY);
    let begin = Instant::now();
    let held = || sandbox.door("GET", "/_karp/held", "");
    while held()["CreateOpenIDConnectProvider"] != 1 || held()["CreateRole"] != 1 {
        assert!(begin.elapsed() < PATIENCE && !running.is_over(), "both are made: {}", running.end().text);
        std::thread::sleep(Duration::from_millis(20));
    }
    let providers = running.providers();
    assert_eq!(providers.len(), 1);
    // kills it
    drop(running);
    each("/_karp/release");
    while std::fs::exists(format!("/proc/{}", providers[0])).unwrap() {
        assert!(begin.elapsed() < PATIENCE, "the provider outlived OpenTofu");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_ne!(sandbox.what_exists(), before, "both were made");
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(sandbox.adopted_spot_role(&stand), None);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
