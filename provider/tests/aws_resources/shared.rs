//! What a refresh of many resources asks of AWS: each object that AWS shows only by itself once, and all the rest by lists that they share.

use std::collections::BTreeMap;

use crate::life::unique;
use crate::policies::statements;
use crate::stand::{Sandbox, Stand};

/// Two hundred resources, as of four clusters of one team and its other roles.
const RESOURCES: &str = r#"PROVIDER
resource "karp_discovery_tags" "this" {
  count        = 59
  key          = "karp.test/NAME-${count.index}"
  value        = "NAME"
  resource_ids = [element(SUBNETS, count.index)]
}
resource "karp_node_role" "this" {
  count = 48
  name  = "NAME-n${count.index}"
}
resource "karp_instance_profile" "this" {
  count     = 40
  name      = "NAME-${count.index}"
  role_name = karp_node_role.this[count.index].name
}
resource "karp_fargate_pod_execution_role" "this" {
  count = 20
  name  = "NAME-f${count.index}"
}
resource "karp_access_entry" "this" {
  count         = 10
  principal_arn = karp_node_role.this[count.index].arn
}
resource "karp_pod_identity_association" "this" {
  count           = 11
  namespace       = "NAME"
  service_account = "a${count.index}"
  role_arn        = karp_controller_role.this[0].arn
}
resource "karp_controller_role" "this" {
  count                  = 4
  name                   = "NAME-c${count.index}"
  auth                   = "pod_identity"
  namespace              = "NAME"
  service_account        = "c${count.index}"
  policy_mode            = count.index == 0 ? "managed" : "inline"
  node_role_arns         = [karp_node_role.this[count.index].arn]
  interruption_queue_arn = karp_interruption_queue.this[count.index].arn
}
resource "karp_controller_policy" "this" {
  count = 4
  name  = "NAME-p${count.index}"
STATEMENTS}
resource "karp_interruption_queue" "this" {
  count = 4
  name  = "NAME-${count.index}"
}
"#;
/// What AWS shows only one at a time, each with how many of it there are. A queue's attributes, its tags and the rules that are aimed at it are
/// three of these; so are the document of each managed policy, and the tags of those that a resource keeps its document in.
const SINGLE: [(&str, usize); 10] = [
    ("GetRole", 48 + 20 + 4),
    ("GetRolePolicy", 3),
    // Each controller policy is kept in two. Which version of the controller role's one counts is asked so where that is asked alone.
    ("GetPolicy", 4 + 1),
    ("GetPolicyVersion", 4 * 2 + 1),
    ("GetInstanceProfile", 40),
    ("DescribeAccessEntry", 10),
    ("DescribePodIdentityAssociation", 11 + 4),
    ("GetQueueAttributes", 4),
    ("ListQueueTags", 4),
    ("ListRuleNamesByTarget", 4),
];
/// The lists that all share, and how many calls they may take together (issue 7).
const LISTS: [&str; 6] = [
    "DescribeTags",
    "ListAttachedRolePolicies",
    "ListEntitiesForPolicy",
    "ListPolicies",
    "ListRules",
    "GetCallerIdentity",
];
const MOST_LISTS: usize = 20;

impl Sandbox {
    /// Runs OpenTofu, and gives its exit code and how often each action was called meanwhile.
    fn counted(&self, stand: &Stand<'_>, arguments: &[&str]) -> (i32, BTreeMap<String, usize>) {
        self.settle();
        let since = self.last_call();
        let run = stand.tofu(arguments);
        let mut calls = BTreeMap::new();
        for call in self.calls(since) {
            *calls.entry(call["action"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        assert_ne!(run.code, 1, "{}", run.text);
        (run.code, calls)
    }
}

#[tokio::test]
async fn two_hundred_resources_share_their_lists() {
    let Some(sandbox) = Sandbox::find("shared") else { return };
    let before = sandbox.what_exists();
    let name = unique("shared");
    let subnets = format!("{:?}", sandbox.subnet_ids);
    let resources = RESOURCES.replace("NAME", &name).replace("SUBNETS", &subnets);
    let stand = sandbox.stand(&resources.replace("STATEMENTS", &statements(9)));
    stand.apply();
    let parts = stand.attribute("karp_controller_policy.this", "arns").as_object().map(serde_json::Map::len);
    assert_eq!(parts, Some(2), "as many as are counted below");

    for parallelism in ["-parallelism=10", "-parallelism=50"] {
        let (code, calls) = sandbox.counted(&stand, &["plan", "-json", "-detailed-exitcode", parallelism]);
        assert_eq!(code, 0, "the plan after the apply is not empty");
        let (mut single, mut lists) = (0, 0);
        for (action, count) in &calls {
            if LISTS.contains(&action.as_str()) {
                lists += count;
                continue;
            }
            let objects = SINGLE.iter().find(|(single, _)| single == action).map(|(_, objects)| *objects);
            assert!(Some(*count) <= objects, "{action} was called {count} times, for {objects:?} objects: {calls:?}");
            single += count;
        }
        eprintln!("{parallelism}: {single} calls for single objects, {lists} for lists: {calls:?}");
        assert!(lists <= MOST_LISTS, "{lists} calls for lists: {calls:?}");
    }

    // What changes behind the back of one run is seen by the next one, in all that is listed together.
    let iam = sandbox.iam().await;
    let cni = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy";
    iam.detach_role_policy().role_name(format!("{name}-n7")).policy_arn(cni).send().await.unwrap();
    let ec2 = sandbox.clients().await;
    let tag = aws_sdk_ec2::types::Tag::builder().key(format!("karp.test/{name}-3")).build();
    ec2.ec2().delete_tags().set_resources(Some(sandbox.subnet_ids.clone())).tags(tag).send().await.unwrap();
    let events = aws_sdk_eventbridge::Client::new(&ec2.config_for(karp_aws::config::Service::EventBridge));
    events.disable_rule().name(format!("{name}-2-Health")).send().await.unwrap();
    let run = stand.apply();
    let expected = [
        ("create", "karp_discovery_tags.this[3]"),
        ("update", "karp_interruption_queue.this[2]"),
        ("update", "karp_node_role.this[7]"),
    ];
    let mut changes = run.changes();
    changes.sort();
    assert_eq!(changes, expected.map(|(action, address)| (action.to_owned(), address.to_owned())), "{}", run.text);
    stand.assert_empty_plan();

    let run = stand.tofu(&["destroy", "-json", "-auto-approve", "-parallelism=50"]);
    assert_eq!(run.code, 0, "{}", run.text);
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
