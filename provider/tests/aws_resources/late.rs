//! Operations that AWS does not end within `timeouts`: the error says for what it waited, what was made is in state, and the next run goes on.

use std::time::Duration;

use serde_json::json;

use crate::life::unique;
use crate::stand::{FARGATE_SECONDS, Sandbox, Stand};

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
    let Some(sandbox) = Sandbox::find("late_fargate") else { return };
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

/// SQS refuses a name for a minute after its queue was deleted; and rules come one after the other.
#[test]
fn a_queue_whose_name_or_rules_take_longer_ends_at_its_limit() {
    let Some(sandbox) = Sandbox::find("late_queue") else { return };
    let before = sandbox.what_exists();
    let name = unique("late-queue");
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n  timeouts = {{ create = \"3s\" }}\n}}\n"
    ));
    let apply = ["apply", "-json", "-auto-approve"];
    let refusal = json!([{ "action": "CreateQueue", "code": "AWS.SimpleQueueService.QueueDeletedRecently", "status": 400,
        "message": "You must wait 60 seconds after deleting a queue.", "times": 1000 }]);
    sandbox.door("POST", "/_karp/fail", &refusal.to_string());
    let error = late(&stand, &apply);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("limit of 3 s") && error.contains("You must wait 60 seconds"), "{error}");
    assert_eq!(sandbox.what_exists(), before, "nothing was made");

    sandbox.door("POST", "/_karp/delay", &json!({ "action": "PutRule", "seconds": 1.2 }).to_string());
    let error = late(&stand, &apply);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(error.contains("limit of 3 s") && error.contains("write the rules of queue"), "{error}");
    let rules = stand.attribute("karp_interruption_queue.this", "rules");
    let kept = rules.as_object().map_or(0, serde_json::Map::len);
    assert!((1..5).contains(&kept), "what was made is in state: {}", stand.state());
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
