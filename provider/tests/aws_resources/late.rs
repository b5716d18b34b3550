//! Operations that AWS does not end within `timeouts`: the error says for what it waited, what was made is in state, and the next run goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::life::unique;
use crate::policies::statements;
use crate::stand::{FARGATE_SECONDS, Sandbox, Stand};
use crate::tofu::Run;

const PROFILE: &str = r#"PROVIDER
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME"
}
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
  timeouts               = { create = "3s", delete = "3s" }
}
"#;
/// More profiles than come one after the other within the limit of one.
const TURNS: &str = r#"PROVIDER
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME"
}
resource "karp_fargate_profile" "this" {
  count                  = 7
  name                   = "NAME-${count.index}"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
  timeouts               = { create = "5s", delete = "5s" }
}
"#;
/// Seconds that each of [`TURNS`] takes to come or to go.
const TURN: f64 = 1.0;
/// What each of which ends at its limit; one role stays outside of it.
const EACH: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  name     = "NAME-n"
  timeouts = { create = "1s" }
}
resource "karp_fargate_pod_execution_role" "this" {
  name     = "NAME-f"
  timeouts = { create = "1s" }
}
resource "karp_controller_role" "this" {
  name            = "NAME-c"
  auth            = "pod_identity"
  service_account = "NAME-c"
  timeouts        = { create = "1s" }
}
resource "karp_controller_policy" "this" {
  name     = "NAME-p"
  timeouts = { create = "1s" }
STATEMENTS}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = "NODE"
  timeouts  = { create = "1s" }
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
  timeouts     = { create = "1s" }
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = "ROLE"
  timeouts        = { create = "1s" }
}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = true
  timeouts          = { create = "1s" }
}
"#;
const LATE: [&str; 8] = [
    "controller_policy",
    "controller_role",
    "discovery_tags",
    "fargate_pod_execution_role",
    "instance_profile",
    "node_role",
    "pod_identity_association",
    "spot_service_linked_role",
];
/// What changes or goes within a second, or not at all.
const SLOW: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  name = "NAME"
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-f"
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.this.arn
  tags          = { step = "STEP" }
  timeouts      = { update = "1s", delete = "1s" }
}
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
  tags                   = { step = "STEP" }
  timeouts               = { update = "1s" }
}
resource "karp_oidc_provider" "this" {
  tags     = { step = "STEP" }
  timeouts = { update = "1s", delete = "1s" }
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_node_role.this.arn
  timeouts        = { delete = "1s" }
}
"#;
/// Seconds that a Fargate profile takes to come or to go: longer than its limit.
const LONG: f64 = 6.0;

impl Sandbox {
    /// Waits until a profile places pods, or is gone.
    fn await_profile(&self, name: &str, is_there: bool) {
        for _ in 0..600 {
            let active = self.door("GET", "/_karp/fargate-profiles", "");
            let is_active = active.as_array().unwrap().iter().any(|profile| profile["name"] == name);
            let exists = self.what_exists()["fargate_profiles"].to_string().contains(&format!("/{name}\""));
            if (is_there && is_active) || (!is_there && !exists) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the Fargate profile {name} did not come to that");
    }
}

/// Asserts that each of these ended at its limit of a second.
fn each_is_late(run: &Run, kinds: &[&str]) {
    let errors = run.errors();
    for kind in kinds {
        let address = format!("karp_{kind}.this");
        let told = errors.iter().find(|error| error["address"] == address.as_str());
        let told = told.unwrap_or_else(|| panic!("{address} was in time: {}", run.text)).to_string();
        assert!(told.contains("Gave up waiting") && told.contains("limit of 1 s"), "{address}: {told}");
    }
}

/// Runs what must be too late; answers the one error.
fn late(stand: &Stand<'_>, arguments: &[&str]) -> String {
    let run = stand.tofu(arguments);
    assert_eq!(run.code, 1, "{}", run.text);
    let error = run.one_error();
    assert!(error.contains("Gave up waiting") && error.contains("`timeouts`"), "{error}");
    error
}

#[test]
fn a_fargate_profile_that_takes_longer_is_in_state() {
    let Some(sandbox) = Sandbox::in_quiet("late_fargate") else { return };
    let before = sandbox.what_exists();
    let name = unique("late-fargate");
    let config = PROFILE.replace("NAME", &name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    let stand = sandbox.stand(&config);
    sandbox.fargate_takes(LONG);
    let error = late(&stand, &["apply", "-json", "-auto-approve"]);
    sandbox.fargate_takes(FARGATE_SECONDS);
    assert!(error.contains(&format!("{name} to become ACTIVE")), "{error}");
    assert!(stand.attribute("karp_fargate_profile.this", "id").is_string(), "{}", stand.state());
    sandbox.await_profile(&name, true);
    stand.apply();
    stand.assert_empty_plan();

    sandbox.fargate_takes(LONG);
    let error = late(&stand, &["destroy", "-json", "-auto-approve"]);
    sandbox.fargate_takes(FARGATE_SECONDS);
    assert!(error.contains(&format!("{name} to be gone")), "{error}");
    assert!(stand.attribute("karp_fargate_profile.this", "id").is_string(), "{}", stand.state());
    sandbox.await_profile(&name, false);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// EKS changes one profile of a cluster at a time. The last of many waits for longer than its own limit, which begins with its turn.
#[test]
fn the_limits_of_many_fargate_profiles_begin_with_their_turns() {
    let Some(sandbox) = Sandbox::in_quiet("late_fargate_turns") else { return };
    let (before, name) = (sandbox.what_exists(), unique("turns"));
    let config = TURNS.replace("NAME", &name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    let stand = sandbox.stand(&config);
    sandbox.fargate_takes(TURN);
    let since = sandbox.last_call();
    for action in ["apply", "destroy"] {
        let begin = Instant::now();
        let run = stand.tofu(&[action, "-json", "-auto-approve", "-parallelism=50"]);
        assert_eq!(run.code, 0, "{action}: {}", run.text);
        assert!(begin.elapsed() > Duration::from_secs(3), "{action}: they did not take turns");
        if action == "apply" {
            stand.assert_empty_plan();
        }
    }
    sandbox.fargate_takes(FARGATE_SECONDS);
    let calls = sandbox.calls(since).into_iter();
    let refused: Vec<Value> = calls.filter(|call| call["error"] == "ResourceInUseException").collect();
    assert_eq!(refused, Vec::<Value>::new(), "EKS was asked while another profile changed");
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// A role is waited for while it may be new; one that EKS never takes is told with its answer.
#[test]
fn a_fargate_profile_whose_role_is_refused_says_why() {
    let Some(sandbox) = Sandbox::in_quiet("late_fargate_role") else { return };
    let (before, name) = (sandbox.what_exists(), unique("late-role"));
    let config = PROFILE.replace("NAME", &name).replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    let stand = sandbox.stand(&config);
    let refuse = |times: u32| {
        let rule = json!([{ "action": "CreateFargateProfile", "code": "InvalidParameterException", "status": 400,
            "message": "Misconfigured PodExecutionRole Trust Policy", "times": times }]);
        sandbox.door("POST", "/_karp/fail", &rule.to_string());
    };
    refuse(1000);
    let error = late(&stand, &["apply", "-json", "-auto-approve"]);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("Misconfigured PodExecutionRole Trust Policy"), "{error}");
    refuse(1);
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// SQS refuses a name for a minute after its queue was deleted; and rules come one after the other, in a change as in a creation.
#[test]
fn a_queue_whose_name_or_rules_take_longer_ends_at_its_limit() {
    let Some(sandbox) = Sandbox::in_quiet("late_queue") else { return };
    let before = sandbox.what_exists();
    let name = unique("late-queue");
    let config = |more: &str| {
        format!(
            "PROVIDER\nresource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n{more}  timeouts = {{ create = \"3s\", read = \"3s\", \
             update = \"3s\" }}\n}}\n"
        )
    };
    let stand = sandbox.stand(&config(""));
    let delay = |action: &str, seconds: f64| {
        sandbox.door("POST", "/_karp/delay", &json!({ "action": action, "seconds": seconds }).to_string());
    };
    let apply = ["apply", "-json", "-auto-approve"];
    let refusal = json!([{ "action": "CreateQueue", "code": "AWS.SimpleQueueService.QueueDeletedRecently", "status": 400,
        "message": "You must wait 60 seconds after deleting a queue.", "times": 1000 }]);
    sandbox.door("POST", "/_karp/fail", &refusal.to_string());
    let error = late(&stand, &apply);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("limit of 3 s") && error.contains("You must wait 60 seconds"), "{error}");
    assert_eq!(sandbox.what_exists(), before, "nothing was made");

    delay("PutRule", 1.2);
    let error = late(&stand, &apply);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("limit of 3 s") && error.contains("write the rules of queue"), "{error}");
    let rules = stand.attribute("karp_interruption_queue.this", "rules");
    let kept = rules.as_object().map_or(0, serde_json::Map::len);
    assert!((1..5).contains(&kept), "what was made is in state: {}", stand.state());
    stand.apply();
    stand.assert_empty_plan();

    // Some rules have the new tag then, and others do not.
    stand.write(&config("  tags = { step = \"two\" }\n"));
    delay("PutRule", 1.2);
    let error = late(&stand, &apply);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("limit of 3 s") && error.contains("write the rules of queue"), "{error}");
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), "karp_interruption_queue.this".to_owned())], "{}", run.text);
    stand.assert_empty_plan();

    delay("GetQueueAttributes", 4.0);
    let run = stand.plan();
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    let error = run.one_error();
    assert!(
        error.starts_with("Timed out") && error.contains("longer than 3s") && error.contains("`timeouts`"),
        "{error}"
    );
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// What others are slow to make or to show, with limits of a second: one error for each, which says so, and state has what was made.
#[tokio::test]
async fn what_is_not_made_or_seen_in_time_ends_at_its_limit() {
    let Some(sandbox) = Sandbox::in_quiet("late_each") else { return };
    let before = sandbox.what_exists();
    let (name, iam) = (unique("late"), sandbox.iam().await);
    let node = format!("{name}-node");
    let role = iam.create_role().role_name(&node).assume_role_policy_document("{}").send().await.unwrap();
    let text = EACH.replace("NAME", &name).replace("NODE", &node).replace("ROLE", role.role().unwrap().arn());
    let text = text.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids)).replace("STATEMENTS", &statements(9));
    let stand = sandbox.stand(&text);
    for action in ["CreateInstanceProfile", "CreatePolicy", "CreateRole"] {
        sandbox.door("POST", "/_karp/delay", &json!({ "action": action, "seconds": 1.3 }).to_string());
    }
    let never = |action: &str, code: &str, message: &str| json!({ "action": action, "code": code, "status": 400, "message": message, "times": 1000 });
    let refusals = json!([
        never("CreateTags", "InvalidSubnetID.NotFound", "The subnet ID does not exist"),
        never("CreatePodIdentityAssociation", "InvalidParameterException", "Trust policy of the role cannot be read"),
        never("CreateServiceLinkedRole", "InvalidInput", "Service role name has been taken in this account"),
    ]);
    sandbox.door("POST", "/_karp/fail", &refusals.to_string());
    let run = stand.apply_failing();
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    each_is_late(&run, &LATE);
    for kind in ["controller_policy", "controller_role", "fargate_pod_execution_role", "instance_profile", "node_role"]
    {
        assert!(stand.attribute(&format!("karp_{kind}.this"), "id").is_string(), "{kind}: {}", stand.state());
    }
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    iam.delete_role().role_name(&node).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// A change looks first, which takes longer than it may; what EKS and IAM do not let go is waited for until the limit.
#[test]
fn what_changes_or_goes_too_slowly_ends_at_its_limit() {
    let Some(sandbox) = Sandbox::in_quiet("late_changes") else { return };
    let (before, name) = (sandbox.what_exists(), unique("slow"));
    let config = |step: &str| {
        let config = SLOW.replace("NAME", &name).replace("STEP", step);
        config.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids))
    };
    let stand = sandbox.stand(&config("one"));
    stand.apply();
    stand.write(&config("two"));
    for action in ["DescribeAccessEntry", "DescribeFargateProfile", "GetOpenIDConnectProvider"] {
        sandbox.door("POST", "/_karp/delay", &json!({ "action": action, "seconds": 1.3 }).to_string());
    }
    let changed = ["access_entry", "fargate_profile", "oidc_provider"];
    let run = stand.apply_failing();
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    each_is_late(&run, &changed);
    assert_eq!(run.errors().len(), changed.len(), "{}", run.text);
    let run = stand.apply();
    assert_eq!(run.changes().len(), changed.len(), "{}", run.text);
    stand.assert_empty_plan();

    let busy = |action: &str, code: &str| json!({ "action": action, "code": code, "status": 409, "message": "Another change is under way", "times": 1000 });
    let refusals = json!([
        busy("DeleteAccessEntry", "ConcurrentModificationException"),
        busy("DeleteOpenIDConnectProvider", "ConcurrentModification"),
        busy("DeletePodIdentityAssociation", "ConcurrentModificationException"),
    ]);
    sandbox.door("POST", "/_karp/fail", &refusals.to_string());
    let run = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    let told: Vec<String> = run.errors().iter().map(ToString::to_string).collect();
    for what in ["access entry", "arn:aws:iam", "the pod identity association"] {
        let late = format!("Gave up waiting: could not delete {what}");
        let error = told.iter().find(|error| error.contains(&late)).unwrap_or_else(|| panic!("{what}: {}", run.text));
        assert!(error.contains("limit of 1 s is over; the last answer was: Another change is under way"), "{error}");
    }
    assert_eq!(told.len(), 3, "{}", run.text);
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// The answer of a call that makes something never comes: state cannot have it, and the next run takes it for its own all the same.
#[test]
fn what_is_made_and_not_answered_in_time_is_gone_on_with() {
    let Some(sandbox) = Sandbox::find("late_answer") else { return };
    let before = sandbox.what_exists();
    let stand =
        sandbox.stand("PROVIDER\nresource \"karp_oidc_provider\" \"this\" {\n  timeouts = { create = \"1s\" }\n}\n");
    sandbox.door("POST", "/_karp/hold", &json!({ "action": "CreateOpenIDConnectProvider" }).to_string());
    let run = stand.apply_failing();
    sandbox.door("POST", "/_karp/release", &json!({ "action": "CreateOpenIDConnectProvider" }).to_string());
    assert!(run.one_error().starts_with("Timed out") && run.one_error().contains("1s"), "{}", run.text);
    assert_ne!(sandbox.what_exists(), before, "it was made");
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_oidc_provider.this", "adopted"), false, "{}", stand.state());
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
