//! A caller that may look at single objects and list none: a refresh goes on one object after the other, and sees the same.

use std::collections::BTreeMap;

use serde_json::json;

use crate::life::unique;
use crate::stand::{Sandbox, Stand};

/// Enough of each kind that lists are what a refresh begins with: two queues' rules, two managed policies, more node roles than policies
/// of one.
const RESOURCES: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  count = 12
  name  = "NAME-n${count.index}"
}
resource "karp_interruption_queue" "this" {
  count = 2
  name  = "NAME-${count.index}"
}
resource "karp_controller_role" "this" {
  count             = 2
  name              = "NAME-c${count.index}"
  oidc_provider_arn = "arn:aws:iam::123456789012:oidc-provider/oidc.example.com/id/1"
  policy_mode       = "managed"
}
"#;
/// Each list, and what takes its place.
const LISTS: [(&str, &str); 3] = [
    ("ListRules", "DescribeRule"),
    ("ListPolicies", "GetPolicy"),
    ("ListEntitiesForPolicy", "ListAttachedRolePolicies"),
];
/// More than a run asks.
const ALWAYS: u32 = 10_000;

impl Sandbox {
    fn deny_lists(&self, lists: &[&str]) {
        let rule = |action: &&str| json!({ "action": action, "code": "AccessDeniedException", "message": "not you", "status": 403, "times": ALWAYS });
        let rules: Vec<_> = lists.iter().map(rule).collect();
        self.door("POST", "/_karp/fail", &json!(rules).to_string());
    }

    /// Plans one resource at a time, so that whoever comes later may profit from who came before; gives the exit code, what changes, and how
    /// often each action was called and was not refused.
    fn planned(&self, stand: &Stand<'_>) -> (i32, Vec<(String, String)>, BTreeMap<String, usize>) {
        self.settle();
        let since = self.last_call();
        let run = stand.tofu(&["plan", "-json", "-detailed-exitcode"]);
        assert_ne!(run.code, 1, "{}", run.text);
        let mut answered = BTreeMap::new();
        for call in self.calls(since).iter().filter(|call| call["error"].is_null()) {
            *answered.entry(call["action"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let mut changes = run.changes();
        changes.sort();
        (run.code, changes, answered)
    }
}

#[tokio::test]
async fn who_may_list_nothing_reads_one_after_the_other() {
    let Some(sandbox) = Sandbox::find("denied") else { return };
    let before = sandbox.what_exists();
    let name = unique("denied");
    let stand = sandbox.stand(&RESOURCES.replace("NAME", &name));
    stand.apply();

    let (code, _, allowed) = sandbox.planned(&stand);
    assert_eq!(code, 0);
    for (list, _) in LISTS {
        assert!(allowed.contains_key(list), "{list} is not asked, and so nothing is shown here: {allowed:?}");
    }

    sandbox.deny_lists(&LISTS.map(|(list, _)| list));
    let (code, changes, answered) = sandbox.planned(&stand);
    assert_eq!((code, changes), (0, vec![]));
    for (list, single) in LISTS {
        let more = answered.get(single).copied() > allowed.get(single).copied();
        assert!(!answered.contains_key(list) && more, "{list}, {single}: {answered:?}");
    }

    // What others change is seen all the same.
    let iam = sandbox.iam().await;
    let cni = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy";
    iam.detach_role_policy().role_name(format!("{name}-n7")).policy_arn(cni).send().await.unwrap();
    let events = sandbox.clients().await.config_for(karp_aws::config::Service::EventBridge);
    let events = aws_sdk_eventbridge::Client::new(&events);
    events.disable_rule().name(format!("{name}-1-Health")).send().await.unwrap();
    let (_, changes, _) = sandbox.planned(&stand);
    let expected = ["karp_interruption_queue.this[1]", "karp_node_role.this[7]"];
    assert_eq!(changes, expected.map(|address| ("update".to_owned(), address.to_owned())));
    stand.apply();
    stand.assert_empty_plan();

    // One after the other is forbidden, too: one error names what and whose.
    sandbox.deny_lists(&["DescribeRule"]);
    let told = stand.plan();
    let errors = told.errors();
    assert!(told.code == 1 && !errors.is_empty(), "{}", told.text);
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("Not authorised") && text.contains("EventBridge rule") && text.contains(&name), "{text}");
    }
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
