# Identity, network and queue: what there must be before a controller can launch nodes.

locals {
  on_fargate = var.controller_on == "fargate"
  irsa       = var.controller_auth == "irsa"

  create_oidc_provider = local.irsa && var.create_oidc_provider
  # EKS is asked for the cluster security group only where nothing else says which groups nodes get.
  ask_eks = var.discovery != "tagged" && var.security_group_ids == null

  security_group_ids = local.ask_eks ? [data.karp_cluster.this[0].cluster_security_group_id] : coalesce(var.security_group_ids, [])
  discovery_tag      = { (var.discovery_tag_key) = var.cluster_name }

  oidc_provider_arn = local.create_oidc_provider ? karp_oidc_provider.this[0].arn : var.oidc_provider_arn
  queue_arn         = var.enable_spot_termination ? karp_interruption_queue.this[0].arn : null
  queue_name        = var.enable_spot_termination ? karp_interruption_queue.this[0].name : null

  node_iam_role_arn = var.create_node_iam_role ? karp_node_role.this[0].arn : var.node_iam_role_arn
  # A role's ARN ends on its path and name.
  node_iam_role_name = var.create_node_iam_role ? karp_node_role.this[0].name : reverse(split("/", var.node_iam_role_arn))[0]
}

data "karp_cluster" "this" {
  count = local.ask_eks ? 1 : 0

  name = var.cluster_name
}

# --- nodes ------------------------------------------------------------------------------------------------------------------------

resource "karp_node_role" "this" {
  count = var.create_node_iam_role ? 1 : 0

  cluster_name           = var.cluster_name
  name                   = var.node_iam_role_name
  path                   = var.iam_role_path
  permissions_boundary   = var.iam_role_permissions_boundary_arn
  ip_family              = var.cluster_ip_family
  attach_cni_policy      = var.node_iam_role_attach_cni_policy
  attach_ssm_policy      = var.node_iam_role_attach_ssm_policy
  additional_policy_arns = var.node_iam_role_additional_policies
  tags                   = var.tags
}

resource "karp_instance_profile" "this" {
  cluster_name = var.cluster_name
  name         = var.instance_profile_name
  path         = var.iam_role_path
  role_name    = local.node_iam_role_name
  tags         = var.tags
}

resource "karp_access_entry" "node" {
  count = var.node_access == "access_entry" ? 1 : 0

  cluster_name  = var.cluster_name
  principal_arn = local.node_iam_role_arn
  type          = var.access_entry_type
  tags          = var.tags
}

resource "karp_aws_auth_entry" "node" {
  count = var.node_access == "aws_auth" ? 1 : 0

  role_arn = local.node_iam_role_arn
}

resource "karp_spot_service_linked_role" "this" {
  count = var.create_spot_service_linked_role ? 1 : 0
}

resource "karp_discovery_tags" "this" {
  count = var.discovery == "tag" ? 1 : 0

  resource_ids = concat(var.subnet_ids, local.security_group_ids)
  key          = var.discovery_tag_key
  value        = var.cluster_name
}

# --- controller -------------------------------------------------------------------------------------------------------------------

resource "karp_oidc_provider" "this" {
  count = local.create_oidc_provider ? 1 : 0

  cluster_name = var.cluster_name
  tags         = var.tags
}

resource "karp_interruption_queue" "this" {
  count = var.enable_spot_termination ? 1 : 0

  cluster_name      = var.cluster_name
  name              = var.queue_name
  kms_master_key_id = var.queue_kms_master_key_id
  tags              = var.tags
}

resource "karp_controller_role" "this" {
  cluster_name           = var.cluster_name
  name                   = var.iam_role_name
  path                   = var.iam_role_path
  permissions_boundary   = var.iam_role_permissions_boundary_arn
  policy_mode            = var.policy_mode
  auth                   = var.controller_auth
  oidc_provider_arn      = local.irsa ? local.oidc_provider_arn : null
  namespace              = var.namespace
  service_account        = var.service_account
  node_role_arns         = concat([local.node_iam_role_arn], var.additional_node_iam_role_arns)
  ami_ssm_parameter_arns = var.ami_id_ssm_parameter_arns
  interruption_queue_arn = local.queue_arn
  instance_profiles      = var.instance_profiles
  extra_statements       = var.iam_role_extra_statements
  tags                   = var.tags
}

resource "karp_fargate_pod_execution_role" "this" {
  count = local.on_fargate ? 1 : 0

  cluster_name         = var.cluster_name
  name                 = var.fargate_iam_role_name
  path                 = var.iam_role_path
  permissions_boundary = var.iam_role_permissions_boundary_arn
  tags                 = var.tags
}

resource "karp_fargate_profile" "this" {
  count = local.on_fargate ? 1 : 0

  cluster_name           = var.cluster_name
  name                   = var.fargate_profile_name
  pod_execution_role_arn = karp_fargate_pod_execution_role.this[0].arn
  subnet_ids             = coalesce(var.fargate_subnet_ids, var.subnet_ids)
  selectors              = [{ namespace = var.namespace }]
  tags                   = var.tags
}
