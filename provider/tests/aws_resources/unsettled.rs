//! What AWS refuses for a moment because something else was made or taken off just now: the same is asked again, and the run ends well.

use serde_json::{Value, json};

use crate::life::unique;
use crate::stand::Sandbox;

/// Action, code, message, and how many calls.
type Refusal = (&'static str, &'static str, &'static str, usize);

impl Sandbox {
    /// Does something while AWS refuses calls that name something, and holds that each refusal was met.
    fn through(&self, name: &str, refusals: &[Refusal], run: impl FnOnce()) {
        let since = self.last_call();
        self.refuse_for_a_moment(name, refusals);
        run();
        self.assert_refused(since, refusals);
    }

    /// Refuses the next calls that name something.
    fn refuse_for_a_moment(&self, name: &str, refusals: &[Refusal]) {
        let rule = |(action, code, message, times): &Refusal| json!({ "action": action, "code": code, "message": message, "status": 400, "times": times, "where": name });
        let rules: Vec<Value> = refusals.iter().map(rule).collect();
        self.door("POST", "/_karp/fail", &json!(rules).to_string());
    }

    /// Holds that each refusal was met.
    fn assert_refused(&self, since: u64, refusals: &[Refusal]) {
        let calls = self.calls(since);
        for (action, code, _, times) in refusals {
            let met = calls.iter().filter(|call| call["action"] == *action && call["error"] == *code).count();
            assert!(met >= *times, "{action} was refused {met} times, not {times}");
        }
    }
}

#[test]
fn a_queue_waits_for_its_policy_and_for_its_rules() {
    const COMING: [Refusal; 3] = [
        ("SetQueueAttributes", "InvalidAttributeValue", "Invalid value for the parameter Policy.", 2),
        ("PutRule", "ConcurrentModificationException", "The rule is being changed.", 1),
        ("PutTargets", "ResourceNotFoundException", "Rule does not exist on EventBus default.", 1),
    ];
    const GOING: [Refusal; 2] = [
        ("RemoveTargets", "ConcurrentModificationException", "The rule is being changed.", 1),
        ("DeleteRule", "ValidationException", "Rule can't be deleted since it has targets.", 2),
    ];
    let Some(sandbox) = Sandbox::find("unsettled_queue") else { return };
    let (before, name) = (sandbox.what_exists(), unique("unsettled"));
    let account = "123456789012";
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_interruption_queue\" \"this\" {{\n  name   = {name:?}\n  events = [\"spot\"]\n  extra_statements = [{{\n    \
         principals = [{{ type = \"AWS\", identifiers = [\"arn:aws:iam::{account}:role/{name}\", \"{account}\"] }}]\n    \
         actions    = [\"sqs:SendMessage\"]\n  }}]\n}}\n"
    ));
    sandbox.through(&name, &COMING, || drop(stand.apply()));
    stand.assert_empty_plan();
    // as AWS answers it
    let policy = stand.attribute("karp_interruption_queue.this", "policy");
    assert!(policy.as_str().unwrap().contains(&format!("arn:aws:iam::{account}:root")), "{policy}");

    sandbox.through(&name, &GOING, || stand.destroy());
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn a_role_waits_for_policies_that_are_new() {
    const MISSING: &str = "The policy does not exist or is not attachable.";
    const COMING: [Refusal; 3] = [
        ("CreateRole", "NoSuchEntity", MISSING, 1),
        ("AttachRolePolicy", "NoSuchEntity", MISSING, 2),
        ("PutRolePolicy", "NoSuchEntity", "The role cannot be found.", 1),
    ];
    let Some(sandbox) = Sandbox::find("unsettled_role") else { return };
    let (before, name, iam) = (sandbox.what_exists(), unique("unsettledrole"), sandbox.iam().await);
    let text = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}"#;
    let own = iam.create_policy().policy_name(format!("{name}-own")).policy_document(text).send().await.unwrap();
    let own = own.policy().unwrap().arn().unwrap();
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n  ip_family = \"ipv6\"\n  permissions_boundary = {own:?}\n  \
         additional_policy_arns = {{ own = {own:?} }}\n}}\n"
    ));
    sandbox.through(&name, &COMING, || drop(stand.apply()));
    stand.assert_empty_plan();
    stand.destroy();
    iam.delete_policy().policy_arn(own).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn an_instance_profile_goes_though_its_role_still_counts() {
    const GOING: [Refusal; 1] =
        [("DeleteInstanceProfile", "DeleteConflict", "Cannot delete entity, must remove roles first.", 2)];
    let Some(sandbox) = Sandbox::find("unsettled_profile") else { return };
    let (before, name) = (sandbox.what_exists(), unique("unsettledprofile"));
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\nresource \"karp_instance_profile\" \"this\" {{\n  \
         name      = {name:?}\n  role_name = karp_node_role.this.name\n}}\n"
    ));
    stand.apply();
    sandbox.through(&name, &GOING, || stand.destroy());
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// IAM takes a role's sessions back to an hour when an update leaves their length out.
#[tokio::test]
async fn a_role_that_is_taken_over_keeps_the_length_of_its_sessions() {
    let Some(sandbox) = Sandbox::find("sessions") else { return };
    let (before, name, iam) = (sandbox.what_exists(), unique("sessions"), sandbox.iam().await);
    let call = iam.create_role().role_name(&name).assume_role_policy_document("{}").max_session_duration(7200);
    call.send().await.unwrap();
    let stand = sandbox.stand(&format!(
        "PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n  description = \"nodes\"\n  adopt = true\n}}\n"
    ));
    stand.apply();
    stand.assert_empty_plan();
    let role = iam.get_role().role_name(&name).send().await.unwrap().role.unwrap();
    assert_eq!((role.description(), role.max_session_duration()), (Some("nodes"), Some(7200)));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
