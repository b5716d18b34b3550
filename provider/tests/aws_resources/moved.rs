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
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = "FARGATE"
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-fargate"
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.node.arn
}
resource "karp_controller_role" "this" {
  name            = "NAME-c"
  auth            = "pod_identity"
  service_account = "NAME-c"
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_node_role.node.arn
}
resource "karp_oidc_provider" "this" {}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = true
}
moved {
  from = aws_iam_role.fargate
  to   = karp_fargate_pod_execution_role.this
}
moved {
  from = aws_iam_role.controller
  to   = karp_controller_role.this
}
moved {
  from = aws_eks_access_entry.this
  to   = karp_access_entry.this
}
moved {
  from = aws_eks_pod_identity_association.this
  to   = karp_pod_identity_association.this
}
moved {
  from = aws_iam_openid_connect_provider.this
  to   = karp_oidc_provider.this
}
moved {
  from = aws_iam_service_linked_role.this
  to   = karp_spot_service_linked_role.this
}
moved {
  from = aws_eks_fargate_profile.this
  to   = karp_fargate_profile.this
}
moved {
  from = aws_ec2_tag.this
  to   = karp_discovery_tags.this
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

/// The registry that kept them does not matter.
fn left(address: &'static str, attributes: serde_json::Value, identity: Option<(u64, serde_json::Value)>) -> Left {
    let of_terraform = identity.is_none();
    let provider = if of_terraform { "registry.terraform.io/hashicorp/aws" } else { "hashicorp/aws" };
    Left { provider, address, version: 0, attributes, identity }
}

#[tokio::test]
async fn what_hashicorp_aws_kept_moves_in_and_stays_the_same_object() {
    let Some(sandbox) = Sandbox::find("moved") else { return };
    let before = sandbox.what_exists();
    let name = unique("moved");
    let (iam, clients) = (sandbox.iam().await, sandbox.clients().await);
    let tag = |key: &str| Tag::builder().key(key).value("1").build().unwrap();
    let role = iam.create_role().role_name(&name).path("/karpenter/").assume_role_policy_document(TRUST);
    let role = role.tags(tag("own")).tags(tag("foreign")).send().await.unwrap().role.unwrap();
    iam.create_instance_profile().instance_profile_name(&name).send().await.unwrap();
    iam.add_role_to_instance_profile().instance_profile_name(&name).role_name(&name).send().await.unwrap();
    let queue = clients.sqs().create_queue().queue_name(&name).send().await.unwrap();
    let url = queue.queue_url.unwrap();

    let trust = TRUST.replace("ec2.amazonaws.com", "eks-fargate-pods.amazonaws.com");
    let fargate = iam.create_role().role_name(format!("{name}-fargate")).assume_role_policy_document(trust);
    let fargate = fargate.send().await.unwrap().role.unwrap();
    let selector = aws_sdk_eks::types::FargateProfileSelector::builder().namespace(&name).build();
    let profile = clients.eks().create_fargate_profile().cluster_name(&sandbox.cluster).fargate_profile_name(&name);
    let profile = profile.pod_execution_role_arn(fargate.arn()).set_subnets(Some(sandbox.subnet_ids.clone()));
    let profile = profile.selectors(selector).send().await.unwrap().fargate_profile.unwrap();
    let (tagged, key) = (&sandbox.subnet_ids[0], format!("karp.test/{name}"));
    let tag_of = aws_sdk_ec2::types::Tag::builder().key(&key).value("x").build();
    clients.ec2().create_tags().resources(tagged).tags(tag_of).send().await.unwrap();

    let eks = clients.eks();
    let entry = eks.create_access_entry().cluster_name(&sandbox.cluster).principal_arn(role.arn()).r#type("EC2_LINUX");
    entry.send().await.unwrap();
    let trust = TRUST.replace("ec2.amazonaws.com", "pods.eks.amazonaws.com");
    let controller = iam.create_role().role_name(format!("{name}-c")).assume_role_policy_document(trust);
    let controller = controller.send().await.unwrap().role.unwrap();
    let call = eks.create_pod_identity_association().cluster_name(&sandbox.cluster).namespace("apps");
    let association = call.service_account(&name).role_arn(role.arn()).send().await.unwrap().association.unwrap();
    let cluster = eks.describe_cluster().name(&sandbox.cluster).send().await.unwrap().cluster.unwrap();
    let issuer = cluster.identity().unwrap().oidc().unwrap().issuer().unwrap().to_owned();
    let oidc = iam.create_open_id_connect_provider().url(&issuer).client_id_list("sts.amazonaws.com").send().await;
    let oidc = oidc.unwrap().open_id_connect_provider_arn.unwrap();
    let spot = iam.create_service_linked_role().aws_service_name("spot.amazonaws.com").send().await.unwrap();
    let spot = spot.role.unwrap();

    let taken = TAKEN.replace("NAME", &name).replace("FARGATE", fargate.arn());
    let stand = sandbox.stand(&taken.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids)));
    let account = role.arn().split(':').nth(4).unwrap();
    stand.hand_over(&[
        left(
            "aws_iam_role.node",
            json!({ "id": name, "name": name, "arn": role.arn(), "path": "/karpenter/", "tags": { "own": "1" }, "tags_all": { "own": "1" } }),
            Some((0, json!({ "account_id": account, "name": name }))),
        ),
        left("aws_iam_role.fargate", json!({ "id": fargate.role_name(), "name": fargate.role_name(), "arn": fargate.arn() }), None),
        left("aws_iam_role.controller", json!({ "id": controller.role_name(), "name": controller.role_name(), "arn": controller.arn() }), None),
        left("aws_eks_access_entry.this", json!({ "cluster_name": sandbox.cluster, "principal_arn": role.arn() }), None),
        left(
            "aws_eks_pod_identity_association.this",
            json!({ "cluster_name": sandbox.cluster, "association_id": association.association_id() }),
            None,
        ),
        left("aws_iam_openid_connect_provider.this", json!({ "id": oidc, "arn": oidc }), None),
        left(
            "aws_iam_service_linked_role.this",
            json!({ "id": spot.arn(), "arn": spot.arn(), "aws_service_name": "spot.amazonaws.com" }),
            None,
        ),
        left("aws_iam_instance_profile.node", json!({ "id": name, "name": name, "role": name, "tags": null }), None),
        left("aws_sqs_queue.this", json!({ "id": url, "url": url, "name": name, "tags": {} }), Some((1, json!({ "url": url })))),
        left(
            "aws_eks_fargate_profile.this",
            json!({ "id": format!("{}:{name}", sandbox.cluster), "arn": profile.fargate_profile_arn, "cluster_name": sandbox.cluster, "fargate_profile_name": name, "region": sandbox.region, "tags": {} }),
            None,
        ),
        left(
            "aws_ec2_tag.this",
            json!({ "id": format!("{tagged},{key}"), "resource_id": tagged, "key": key, "value": "x" }),
            None,
        ),
    ]);
    let plan = stand.plan();
    let updates = [
        "karp_access_entry.this",
        "karp_controller_role.this",
        "karp_discovery_tags.this",
        "karp_fargate_pod_execution_role.this",
        "karp_fargate_profile.this",
        "karp_instance_profile.node",
        "karp_interruption_queue.this",
        "karp_node_role.node",
        "karp_oidc_provider.this",
        "karp_pod_identity_association.this",
        "karp_spot_service_linked_role.this",
    ];
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
    assert_eq!(stand.attribute("karp_fargate_profile.this", "arn"), json!(profile.fargate_profile_arn));
    assert_eq!(stand.attribute("karp_controller_role.this", "unique_id"), controller.role_id());
    assert_eq!(stand.attribute("karp_fargate_pod_execution_role.this", "unique_id"), fargate.role_id());
    let kept = stand.attribute("karp_pod_identity_association.this", "association_id");
    assert_eq!(kept, json!(association.association_id()));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
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
    let run = second.apply();
    let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
    assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{}", run.text);
    second.assert_empty_plan();
    second.destroy();
}
