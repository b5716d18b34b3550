//! Resources that hashicorp/aws kept move in, and objects are imported by identity. Each test ends on an empty plan.

use aws_sdk_iam::types::Tag;
use serde_json::json;

use crate::life::unique;
use crate::others::Left;
use crate::stand::Sandbox;

const TRUST: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}"#;

const TAKEN: &str = r#"
PROVIDER
resource "karp_node_role" "node" {
  name = "NAME"
  path = "/karpenter/"
  tags = { own = "1" }
}
resource "karp_instance_profile" "node" {
  name      = "NAME"
  role_name = karp_node_role.node.name
}
resource "karp_interruption_queue" "this" {
  name = "NAME"
}
moved {
  from = aws_iam_role.node
  to   = karp_node_role.node
}
moved {
  from = aws_iam_instance_profile.node
  to   = karp_instance_profile.node
}
moved {
  from = aws_sqs_queue.this
  to   = karp_interruption_queue.this
}
"#;

fn left(address: &'static str, attributes: serde_json::Value, identity: Option<(u64, serde_json::Value)>) -> Left {
    Left { provider: "hashicorp/aws", address, version: 0, attributes, identity }
}

#[tokio::test]
async fn what_hashicorp_aws_kept_moves_in_and_stays_the_same_object() {
    let Some(sandbox) = Sandbox::find("moved") else { return };
    let name = unique("moved");
    let (iam, clients) = (sandbox.iam().await, sandbox.clients().await);
    let tag = |key: &str| Tag::builder().key(key).value("1").build().unwrap();
    let role = iam.create_role().role_name(&name).path("/karpenter/").assume_role_policy_document(TRUST);
    let role = role.tags(tag("own")).tags(tag("foreign")).send().await.unwrap().role.unwrap();
    iam.create_instance_profile().instance_profile_name(&name).send().await.unwrap();
    iam.add_role_to_instance_profile().instance_profile_name(&name).role_name(&name).send().await.unwrap();
    let queue = clients.sqs().create_queue().queue_name(&name).send().await.unwrap();
    let url = queue.queue_url.unwrap();

    let stand = sandbox.stand(&TAKEN.replace("NAME", &name));
    let account = role.arn().split(':').nth(4).unwrap();
    stand.hand_over(&[
        left(
            "aws_iam_role.node",
            json!({ "id": name, "name": name, "arn": role.arn(), "path": "/karpenter/", "tags": { "own": "1" }, "tags_all": { "own": "1" } }),
            Some((0, json!({ "account_id": account, "name": name }))),
        ),
        left("aws_iam_instance_profile.node", json!({ "id": name, "name": name, "role": name, "tags": null }), None),
        left("aws_sqs_queue.this", json!({ "id": url, "url": url, "name": name, "tags": {} }), Some((1, json!({ "url": url })))),
    ]);
    let plan = stand.plan();
    let updates = ["karp_instance_profile.node", "karp_interruption_queue.this", "karp_node_role.node"];
    let mut changes = plan.changes();
    changes.sort();
    assert_eq!(changes, updates.map(|address| ("update".to_owned(), address.to_owned())), "{}", plan.text);
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_node_role.node", "unique_id"), role.role_id());
    assert_eq!(stand.attribute("karp_interruption_queue.this", "url"), url.as_str());
    let kept = iam.list_role_tags().role_name(&name).send().await.unwrap();
    let mut keys: Vec<&str> = kept.tags().iter().map(Tag::key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["foreign", "karp.sh/cluster", "own"]);
    stand.destroy();
}

#[test]
fn imports_by_identity_end_on_an_empty_plan() {
    let Some(sandbox) = Sandbox::find("identity") else { return };
    let name = unique("identity");
    let config = format!(
        "PROVIDER\nresource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\n\
         resource \"karp_access_entry\" \"this\" {{\n  principal_arn = karp_node_role.this.arn\n}}\n"
    );
    let first = sandbox.stand(&config);
    first.apply();
    let arn = first.attribute("karp_node_role.this", "arn");
    let (cluster, region) = (&sandbox.cluster, &sandbox.region);
    let imports = format!(
        "import {{\n  to = karp_node_role.this\n  identity = {{\n    name = {name:?}\n  }}\n}}\n\
         import {{\n  to = karp_access_entry.this\n  identity = {{\n    cluster_name = {cluster:?}\n    principal_arn = {arn}\n    \
         region = {region:?}\n  }}\n}}\n"
    );
    let second = sandbox.stand(&(config + &imports));
    let run = second.plan();
    let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
    assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{}", run.text);
    second.apply();
    second.assert_empty_plan();
    second.destroy();
}
