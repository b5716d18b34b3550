//! Many resources at once, while AWS throttles a part of the calls: all of them come, the next plan is empty and looks at each object
//! once, and all of them go.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::stand::{Sandbox, Stand};

const RESOURCES: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  count = 12
  name  = "NAME-${count.index}"
}
resource "karp_instance_profile" "this" {
  count     = 10
  name      = "NAME-${count.index}"
  role_name = karp_node_role.this[count.index].name
}
resource "karp_interruption_queue" "this" {
  count = 5
  name  = "NAME-${count.index}"
}
resource "karp_discovery_tags" "this" {
  count        = 20
  key          = "karp.test/NAME-${count.index}"
  value        = "NAME"
  resource_ids = SUBNETS
}
"#;
/// The calls that take marks off, each as often as there are objects that were made with one.
const UNMARKED: [(&str, usize); 3] = [("UntagInstanceProfile", 10), ("UntagQueue", 5), ("UntagRole", 12)];
/// Actions that are throttled, each with the code and the status that its service answers then.
const THROTTLED: [(&str, &str, u16); 17] = [
    ("AddRoleToInstanceProfile", "Throttling", 400),
    ("AttachRolePolicy", "Throttling", 400),
    ("CreateInstanceProfile", "Throttling", 400),
    ("CreateQueue", "RequestThrottled", 400),
    ("CreateRole", "Throttling", 400),
    ("CreateTags", "RequestLimitExceeded", 503),
    ("DeleteRole", "Throttling", 400),
    ("DeleteTags", "RequestLimitExceeded", 503),
    ("DescribeTags", "RequestLimitExceeded", 503),
    ("GetInstanceProfile", "Throttling", 400),
    ("GetRole", "Throttling", 400),
    ("ListAttachedRolePolicies", "Throttling", 400),
    ("ListQueueTags", "RequestThrottled", 400),
    ("ListRuleNamesByTarget", "ThrottlingException", 400),
    ("PutRule", "ThrottlingException", 400),
    ("PutTargets", "ThrottlingException", 400),
    ("SetQueueAttributes", "RequestThrottled", 400),
];
/// All that a plan without changes asks, each at most so often: what AWS shows one at a time as often as there are objects, and the shared
/// lists some times ([`crate::shared`] counts them).
const ASKED: [(&str, usize); 9] = [
    ("DescribeTags", 3),
    ("GetInstanceProfile", 10),
    ("GetQueueAttributes", 5),
    ("GetRole", 12),
    // As many roles as policies are asked one by one, then each policy once.
    ("ListAttachedRolePolicies", 4),
    ("ListEntitiesForPolicy", 4),
    ("ListQueueTags", 5),
    ("ListRuleNamesByTarget", 5),
    ("ListRules", 3),
];

impl Sandbox {
    /// Throttles the second, third, fifth and sixth call of each action: one call meets at most four refusals, and is made five times.
    fn throttle(&self) {
        let rule = |(action, code, status): &(&str, &str, u16)| {
            let mut rule = json!({ "action": action, "code": code, "status": status, "message": "Rate exceeded" });
            rule["times"] = json!(2);
            rule["after"] = json!(1);
            rule
        };
        let rules: Vec<Value> = THROTTLED.iter().chain(&THROTTLED).map(rule).collect();
        self.door("POST", "/_karp/fail", &json!(rules).to_string());
    }

    /// Runs OpenTofu under throttling; it must succeed. Gives how often each action was answered well.
    fn under_throttling(&self, stand: &Stand<'_>, arguments: &[&str]) -> BTreeMap<String, usize> {
        self.settle();
        let since = self.last_call();
        self.throttle();
        let run = stand.tofu(arguments);
        self.door("POST", "/_karp/reset-faults", "{}");
        assert_eq!(run.code, 0, "{}", run.text);
        self.settle();
        let calls = self.calls(since);
        let of_throttling = |call: &&Value| {
            THROTTLED.iter().any(|(action, code, _)| call["action"] == *action && call["error"] == *code)
        };
        let throttled = calls.iter().filter(of_throttling).count();
        assert!(throttled >= 16, "{arguments:?}: only {throttled} calls were throttled");
        let mut answered = BTreeMap::new();
        for call in calls.iter().filter(|call| call["error"].is_null()) {
            *answered.entry(call["action"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        eprintln!("{arguments:?}: {} calls, {throttled} of them throttled; answered: {answered:?}", calls.len());
        answered
    }
}

fn come_and_go_at_once(test: &str, parallelism: &str) {
    let Some(sandbox) = Sandbox::find(test) else { return };
    let before = sandbox.what_exists();
    let name = format!("m{}-{test}", std::process::id());
    let subnets = format!("{:?}", sandbox.subnet_ids);
    let stand = sandbox.stand(&RESOURCES.replace("NAME", &name).replace("SUBNETS", &subnets));
    let made = sandbox.under_throttling(&stand, &["apply", "-json", "-auto-approve", parallelism]);
    for (action, count) in UNMARKED {
        assert_eq!(made.get(action), Some(&count), "{action}: a mark is left on what was made");
    }
    let asked = sandbox.under_throttling(&stand, &["plan", "-json", "-detailed-exitcode", parallelism]);
    for (action, count) in &asked {
        let most = ASKED.iter().find(|(expected, _)| expected == action).map_or(0, |(_, count)| *count);
        assert!(*count <= most, "a plan without changes called {action} {count} times, not {most}");
    }
    sandbox.under_throttling(&stand, &["destroy", "-json", "-auto-approve", parallelism]);
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[test]
fn ten_at_once_bear_throttling() {
    come_and_go_at_once("ten", "-parallelism=10");
}

#[test]
fn fifty_at_once_bear_throttling() {
    come_and_go_at_once("fifty", "-parallelism=50");
}
