//! Resources that set every attribute there is: applied, they leave nothing to do, and an import reads all of it back.

use crate::life::unique;
use crate::stand::Sandbox;
use crate::tofu::without;

/// Names by prefix are in `holes`, regions in `region`.
const FULL: &str = r#"
resource "karp_node_role" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME-n"
  path                   = "/karp/"
  description            = "nodes"
  permissions_boundary   = "arn:aws:iam::aws:policy/PowerUserAccess"
  attach_cni_policy      = true
  attach_ssm_policy      = false
  ip_family              = "ipv6"
  additional_policy_arns = { ReadOnlyAccess = "arn:aws:iam::aws:policy/ReadOnlyAccess" }
  adopt                  = false
  tags                   = { own = "1" }
  timeouts               = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_fargate_pod_execution_role" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME-f"
  path                   = "/karp/"
  description            = "pods"
  permissions_boundary   = "arn:aws:iam::aws:policy/PowerUserAccess"
  additional_policy_arns = { ReadOnlyAccess = "arn:aws:iam::aws:policy/ReadOnlyAccess" }
  adopt                  = false
  tags                   = { own = "1" }
  timeouts               = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_fargate_profile" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME", labels = { team = "a" } }]
  adopt                  = false
  tags                   = { own = "1" }
  timeouts               = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_instance_profile" "this" {
  cluster_name = "CLUSTER"
  name         = "NAME"
  path         = "/karp/"
  role_name    = karp_node_role.this.name
  adopt        = false
  tags         = { own = "1" }
  timeouts     = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_access_entry" "this" {
  cluster_name  = "CLUSTER"
  principal_arn = karp_node_role.this.arn
  type          = "EC2_WINDOWS"
  adopt         = false
  tags          = { own = "1" }
  timeouts      = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_interruption_queue" "this" {
  cluster_name              = "CLUSTER"
  name                      = "NAME"
  events                    = ["spot", "health"]
  kms_master_key_id         = "alias/karp"
  message_retention_seconds = 600
  extra_statements = [{
    sid        = "Own"
    effect     = "Allow"
    actions    = ["sqs:SendMessage"]
    principals = [{ type = "Service", identifiers = ["sns.amazonaws.com"] }]
    conditions = [{ test = "StringEquals", variable = "aws:SourceAccount", values = ["111122223333"] }]
  }]
  adopt    = false
  tags     = { own = "1" }
  timeouts = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_oidc_provider" "this" {
  cluster_name = "CLUSTER"
  adopt        = true
  tags         = { own = "1" }
  timeouts     = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_controller_role" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME-c"
  path                   = "/karp/"
  description            = "controller"
  permissions_boundary   = "arn:aws:iam::aws:policy/PowerUserAccess"
  auth                   = "irsa"
  oidc_provider_arn      = karp_oidc_provider.this.arn
  namespace              = "apps"
  service_account        = "NAME"
  policy_mode            = "managed"
  instance_profiles      = "terraform"
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
  ami_ssm_parameter_arns = ["arn:aws:ssm:us-east-1:111122223333:parameter/images/*"]
  extra_statements = [{
    sid        = "Own"
    effect     = "Deny"
    actions    = ["ec2:DescribeTags"]
    resources  = ["*"]
    conditions = [{ test = "StringEquals", variable = "aws:RequestedRegion", values = ["eu-west-1"] }]
  }]
  adopt    = false
  tags     = { own = "1" }
  timeouts = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_controller_policy" "this" {
  cluster_name           = "CLUSTER"
  name                   = "NAME-p"
  path                   = "/karp/"
  instance_profiles      = "terraform"
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
  ami_ssm_parameter_arns = ["arn:aws:ssm:us-east-1:111122223333:parameter/images/*"]
  extra_statements = [{
    sid        = "Own"
    effect     = "Deny"
    actions    = ["ec2:DescribeTags"]
    resources  = ["*"]
    conditions = [{ test = "StringEquals", variable = "aws:RequestedRegion", values = ["eu-west-1"] }]
  }]
  adopt    = false
  tags     = { own = "1" }
  timeouts = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_pod_identity_association" "this" {
  cluster_name    = "CLUSTER"
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_controller_role.this.arn
  adopt           = false
  tags            = { own = "1" }
  timeouts        = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "x"
  on_conflict  = "error"
  timeouts     = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_teardown" "this" {
  cluster_name  = "CLUSTER"
  drain_timeout = "10m"
  dry_run       = false
  force         = false
  sweep         = ["instances", "network_interfaces"]
  timeouts      = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_spot_service_linked_role" "this" {
  delete_on_destroy = true
  timeouts          = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
"#;
/// What an import is told of each of them; the rest it finds.
const KINDS: [&str; 11] = [
    "access_entry",
    "controller_policy",
    "controller_role",
    "discovery_tags",
    "fargate_pod_execution_role",
    "fargate_profile",
    "instance_profile",
    "interruption_queue",
    "node_role",
    "oidc_provider",
    "pod_identity_association",
];

/// What only a configuration says.
const OWN: [&str; 2] = ["adopt", "timeouts"];

#[tokio::test]
async fn what_sets_every_attribute_is_applied_and_read_back_whole() {
    let Some(sandbox) = Sandbox::with_cluster("full") else { return };
    let (name, before) = (unique("full"), sandbox.what_exists());
    let config = FULL.replace("CLUSTER", &sandbox.cluster).replace("NAME", &name);
    let config = sandbox.provider("") + &config.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids));
    let stand = sandbox.stand(&config);
    stand.apply();
    stand.assert_empty_plan();

    // By the whole identity that the state keeps, account and region with it; `holes` and others import by the id.
    let import = |kind: &&str| {
        let address = format!("karp_{kind}.this");
        let (identity, id) = (stand.identity(&address), stand.attribute(&address, "id"));
        assert_eq!(identity.is_object(), *kind != "discovery_tags", "{kind}: {identity}");
        let told = if identity.is_object() { format!("identity = {identity}") } else { format!("id = {id}") };
        format!("import {{\n  to = {address}\n  {told}\n}}\n")
    };
    let imports = KINDS.iter().map(import).collect::<String>();
    // An import takes the role of the account for another's, and finds nothing of a teardown.
    let (rest, _) = config.split_once("resource \"karp_teardown\"").unwrap();
    let importer = sandbox.stand(&format!("{}{imports}", without(rest, &OWN)));
    importer.apply().assert_imports_alone();
    importer.assert_empty_plan();

    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
    assert_eq!(sandbox.tagged(&name).await, vec![], "tags are left");
}
