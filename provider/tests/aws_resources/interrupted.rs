//! Ctrl-C in the middle of a change and of a destroy of the AWS resources, all of them at once. A call that is under way
//! is waited for, and what it began is brought to its end; what waits for AWS ends at once and says so. Either way the next
//! run completes it.

use aws_sdk_eventbridge::Client as Events;
use karp_aws::config::Service;
use serde_json::{Value, json};

use crate::stand::{Sandbox, Stand};
use crate::stopped::{APPLY, Cut, DESTROY, assert_says_stopped, unique};

/// What each step changes in place: as many resources as OpenTofu is at side by side. None of them depends on another; the
/// role that one of them needs goes after it, and what comes after another has to wait for it.
const EACH: &str = r#"PROVIDER
resource "karp_node_role" "base" {
  name = "NAME-base"
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.base.arn
  tags          = { step = "STEP" }
}
resource "karp_controller_policy" "this" {
  name           = "NAME-policy"
  node_role_arns = ["ROLE"]
  tags           = { step = "STEP" }
}
resource "karp_controller_role" "this" {
  name            = "NAME-controller"
  auth            = "pod_identity"
  service_account = "NAME"
  policy_mode     = "managed"
  node_role_arns  = ["ROLE"]
  tags            = { step = "STEP" }
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "STEP"
}
resource "karp_fargate_pod_execution_role" "this" {
  name                 = "NAME-fargate"
  permissions_boundary = BOUNDARY
  tags                 = { step = "STEP" }
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = "NAME-roleSTEP"
  tags      = { step = "STEP" }
}
resource "karp_interruption_queue" "this" {
  name                      = "NAME"
  message_retention_seconds = 30STEP
  tags                      = { step = "STEP" }
}
resource "karp_node_role" "this" {
  name                   = "NAME-node"
  description            = "Step STEP"
  additional_policy_arns = FURTHER
  tags                   = { step = "STEP" }
}
resource "karp_oidc_provider" "this" {
  tags = { step = "STEP" }
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = "ROLE"
  tags            = { step = "STEP" }
}
resource "terraform_data" "after" {
  input      = "STEP"
  depends_on = [karp_node_role.this]
}
"#;
const KINDS: [&str; 10] = [
    "access_entry",
    "controller_policy",
    "controller_role",
    "discovery_tags",
    "fargate_pod_execution_role",
    "instance_profile",
    "interruption_queue",
    "node_role",
    "oidc_provider",
    "pod_identity_association",
];
/// A call of each change that is held back, in its middle where it has one.
const CHANGING: [(&str, &[&str]); 9] = [
    ("CreatePolicyVersion", &["controller_policy", "controller_role"]),
    ("CreateTags", &["discovery_tags"]),
    ("RemoveRoleFromInstanceProfile", &["instance_profile"]),
    ("SetQueueAttributes", &["interruption_queue"]),
    ("TagOpenIDConnectProvider", &["oidc_provider"]),
    ("TagResource", &["access_entry"]),
    ("TagRole", &["fargate_pod_execution_role"]),
    ("UpdatePodIdentityAssociation", &["pod_identity_association"]),
    ("UpdateRole", &["node_role"]),
];
/// The same of each destroy that goes on with one that was interrupted.
const GOING: [(&str, &[&str]); 7] = [
    ("DeleteAccessEntry", &["access_entry"]),
    ("DeleteInstanceProfile", &["instance_profile"]),
    ("DeleteOpenIDConnectProvider", &["oidc_provider"]),
    ("DeletePodIdentityAssociation", &["pod_identity_association"]),
    ("DeletePolicy", &["controller_policy", "controller_role"]),
    ("DeleteQueue", &["interruption_queue"]),
    ("DeleteRole", &["fargate_pod_execution_role", "node_role"]),
];
const BUSY: &str = "Another change is under way";
const NO_POLICY: &str = "The policy does not exist or is not attachable.";
const IN_USE: &str = "Something is still attached to it.";

/// Action, code and message of what AWS refuses for the time being, a text of the call's parameters, and one of what the
/// resource then says that it was doing.
type Refusal = [&'static str; 5];

/// What changes wait for; nobody refuses an access entry's tags for a while.
const CHANGES_WAIT: [Refusal; 9] = [
    ["AddRoleToInstanceProfile", "NoSuchEntity", "No such role.", "NAME-role3", "into instance profile \"NAME\""],
    ["AttachRolePolicy", "NoSuchEntity", NO_POLICY, "NAME-node", "to role \"NAME-node\""],
    ["CreatePolicyVersion", "ConcurrentModification", BUSY, "NAME-controller-", "policy/NAME-controller-"],
    ["CreatePolicyVersion", "ConcurrentModification", BUSY, "NAME-policy-", "policy/NAME-policy-"],
    ["CreateTags", "InvalidSubnetID.NotFound", "No such subnet.", "karp.test/NAME", "with karp.test/NAME"],
    ["PutRolePermissionsBoundary", "NoSuchEntity", NO_POLICY, "NAME-fargate", "boundary of role \"NAME-fargate\""],
    ["PutRule", "ConcurrentModificationException", BUSY, "NAME-", "write EventBridge rule \"NAME-"],
    ["TagOpenIDConnectProvider", "ConcurrentModification", BUSY, "", ":oidc-provider/"],
    [
        "UpdatePodIdentityAssociation",
        "InvalidParameterException",
        "Trust policy of the role cannot be read",
        "NAME-role3",
        "associate apps/NAME",
    ],
];
/// What a destroy waits for; nobody refuses to take a tag away for a while.
const REMOVALS_WAIT: [Refusal; 9] = [
    ["DeleteAccessEntry", "ConcurrentModificationException", BUSY, "", "delete access entry"],
    ["DeleteInstanceProfile", "DeleteConflict", IN_USE, "NAME", "delete instance profile \"NAME\""],
    ["DeleteOpenIDConnectProvider", "ConcurrentModification", BUSY, "", ":oidc-provider/"],
    ["DeletePodIdentityAssociation", "ConcurrentModificationException", BUSY, "ASSOCIATION", "of apps/NAME"],
    ["DeletePolicy", "DeleteConflict", IN_USE, "NAME-controller-", "policy/NAME-controller-"],
    ["DeletePolicy", "DeleteConflict", IN_USE, "NAME-policy-", "policy/NAME-policy-"],
    ["DeleteRole", "DeleteConflict", IN_USE, "NAME-fargate", "delete role \"NAME-fargate\""],
    ["DeleteRole", "DeleteConflict", IN_USE, "NAME-node", "delete role \"NAME-node\""],
    ["DeleteRule", "ConcurrentModificationException", BUSY, "NAME-", "delete EventBridge rule \"NAME-"],
];

/// What a test of these has, and what it finds in its state.
struct Interrupted<'a> {
    sandbox: &'a Sandbox,
    stand: &'a Stand<'a>,
    name: &'a str,
}

impl Interrupted<'_> {
    fn of(&self, kind: &str, attribute: &str) -> Value {
        self.stand.attribute(&format!("karp_{kind}.this"), attribute)
    }

    /// Presses Ctrl-C when the answers of calls are held back and others were refused. Holds that each resource that waits
    /// then says so.
    fn interrupt(&self, arguments: &[&str], held: &[(&str, &[&str])], refused: &[Refusal]) {
        let association = self.of("pod_identity_association", "association_id");
        let association = association.as_str().unwrap_or_default();
        let named = |text: &str| text.replace("NAME", self.name).replace("ASSOCIATION", association);
        let refused: Vec<[String; 5]> = refused.iter().map(|refusal| refusal.map(named)).collect();
        let rules = refused.iter().map(|[action, code, message, of, _]| {
            json!({ "action": action, "code": code, "message": message, "status": 400, "times": 1000, "where": of })
        });
        self.sandbox.door("POST", "/_karp/fail", &Value::from_iter(rules).to_string());
        let since = self.sandbox.last_call();
        let is_met = || {
            let calls = self.sandbox.calls(since);
            refused.iter().all(|[action, code, _, of, _]| {
                let is_it = |call: &Value| call["action"] == *action && call["error"] == *code;
                calls.iter().any(|call| is_it(call) && call["params"].to_string().contains(of.as_str()))
            })
        };
        let run = self.sandbox.cut_run(self.stand, arguments, held, is_met, Cut::CtrlC);
        self.sandbox.door("POST", "/_karp/reset-faults", "{}");
        for [.., doing] in &refused {
            assert_says_stopped(&run, doing);
        }
    }

    /// Holds that state has of each kind what it should.
    fn assert_known(&self, is_known: impl Fn(&str) -> bool) {
        for kind in KINDS {
            assert_eq!(self.of(kind, "id").is_string(), is_known(kind), "{kind}: {}", self.stand.state());
        }
    }

    /// Holds that what no refresh reads is right, too: the tags of the queue's rules and of the role's policies.
    async fn assert_tagged(&self, step: &str) {
        let events = Events::new(&self.sandbox.clients().await.config_for(Service::EventBridge));
        for rule in self.of("interruption_queue", "rules").as_object().unwrap().values() {
            let found = events.describe_rule().name(rule.as_str().unwrap()).send().await.unwrap();
            let tags = events.list_tags_for_resource().resource_arn(found.arn().unwrap()).send().await.unwrap();
            assert!(tags.tags().iter().any(|tag| (tag.key(), tag.value()) == ("step", step)), "{rule}: {tags:?}");
        }
        let iam = self.sandbox.iam().await;
        for arn in self.of("controller_role", "policy_arns").as_array().unwrap() {
            let found = iam.get_policy().policy_arn(arn.as_str().unwrap()).send().await.unwrap().policy.unwrap();
            assert!(found.tags().iter().any(|tag| (tag.key(), tag.value()) == ("step", step)), "{arn}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_change_and_a_destroy_that_are_interrupted_are_completed_by_the_next_run() {
    let Some(sandbox) = Sandbox::find("interrupted") else { return };
    let (before, name, iam) = (sandbox.what_exists(), unique("halt"), sandbox.iam().await);
    let mut roles = Vec::new();
    for step in 1..=3 {
        let call = iam.create_role().role_name(format!("{name}-role{step}")).assume_role_policy_document("{}");
        roles.push(call.send().await.unwrap().role.unwrap().arn);
    }
    let text = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}"#;
    let own = iam.create_policy().policy_name(format!("{name}-own")).policy_document(text).send().await.unwrap();
    let own = own.policy().unwrap().arn().unwrap();
    let with_own = sandbox.what_exists();
    let config = |step: usize| {
        let last = |text: String| if step == 3 { text } else { "null".to_owned() };
        let (boundary, further) = (last(format!("{own:?}")), last(format!("{{ own = {own:?} }}")));
        let text = EACH.replace("NAME", &name).replace("STEP", &step.to_string()).replace("ROLE", &roles[step - 1]);
        let text = text.replace("BOUNDARY", &boundary).replace("FURTHER", &further);
        text.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids))
    };
    let stand = sandbox.stand(&config(1));
    let all = Interrupted { sandbox: &sandbox, stand: &stand, name: &name };
    stand.apply();

    // What is under way is brought to its end, and state has it; what had not begun is left to the next apply.
    stand.write(&config(2));
    all.interrupt(&APPLY, &CHANGING, &[]);
    for kind in KINDS.into_iter().filter(|kind| *kind != "discovery_tags") {
        assert_eq!(all.of(kind, "tags_all")["step"], "2", "{kind}: {}", stand.state());
    }
    assert_eq!(all.of("discovery_tags", "value"), "2");
    assert_eq!(stand.apply().changes(), [("update".to_owned(), "terraform_data.after".to_owned())]);
    all.assert_tagged("2").await;

    // What waits is left half done: state knows what may be there, and nodes still start with the role from before.
    stand.write(&config(3));
    all.interrupt(&APPLY, &[("TagResource", &["access_entry"])], &CHANGES_WAIT);
    all.assert_known(|_| true);
    assert_eq!(all.of("access_entry", "tags_all")["step"], "3");
    assert!(all.of("node_role", "policy_arns").to_string().contains(own), "{}", stand.state());
    let profile = iam.get_instance_profile().instance_profile_name(&name).send().await.unwrap();
    let within = profile.instance_profile.unwrap().roles.into_iter().map(|role| role.arn).collect::<Vec<_>>();
    assert_eq!(within, roles[1..2]);
    stand.apply();
    stand.assert_empty_plan();
    all.assert_tagged("3").await;

    // So it is with a destroy, which the next one goes on with.
    all.interrupt(&DESTROY, &[("DeleteTags", &["discovery_tags"])], &REMOVALS_WAIT);
    all.assert_known(|kind| kind != "discovery_tags");
    all.interrupt(&DESTROY, &GOING, &[]);
    all.assert_known(|_| false);
    assert!(stand.attribute("karp_node_role.base", "id").is_string(), "its turn had not come: {}", stand.state());
    stand.destroy();
    assert_eq!(sandbox.what_exists(), with_own, "something is left");
    assert_eq!(sandbox.tagged(&name).await, vec![], "tags are left");

    for step in 1..=3 {
        iam.delete_role().role_name(format!("{name}-role{step}")).send().await.unwrap();
    }
    iam.delete_policy().policy_arn(own).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before);
}
