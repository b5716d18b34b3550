# From Provisioner to NodePool: manifests of Karpenter's first API stay as they are, and karp's functions read them.

terraform {
  required_providers {
    karp = {
      source  = "karp/karp"
      version = "~> 0.1"
    }
  }
}

variable "cluster_name" {
  description = "The EKS cluster that karp scales."
  type        = string
}

variable "region" {
  description = "The region of the cluster."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets: of the nodes, and of the Fargate profile that runs the controller."
  type        = set(string)
}

variable "security_group_ids" {
  description = "Security groups of the nodes."
  type        = set(string)
}

variable "node_access" {
  description = "How the cluster lets nodes in: by an \"access_entry\", or by \"aws_auth\" where its authentication mode is CONFIG_MAP."
  type        = string
  default     = "access_entry"
}

provider "karp" {
  region       = var.region
  cluster_name = var.cluster_name

  # Take over what the old installation left under these names, instead of failing.
  adopt_existing = true
}

locals {
  provisioner = yamldecode(templatefile("${path.module}/provisioner.yaml", { cluster_name = var.cluster_name }))
  template    = yamldecode(templatefile("${path.module}/node-template.yaml", { cluster_name = var.cluster_name }))

  pool = provider::karp::node_pool_from_provisioner(local.provisioner)
  class = provider::karp::node_class_from_template(local.template, {
    instance_profile = "KarpenterNodeInstanceProfile-${var.cluster_name}"
    provisioner      = local.provisioner
  })
}

module "karp" {
  source = "../../../terraform/karp"

  cluster_name       = var.cluster_name
  subnet_ids         = var.subnet_ids
  security_group_ids = var.security_group_ids

  # The names that the old installation's CloudFormation stack gave.
  instance_profile_name = "KarpenterNodeInstanceProfile-${var.cluster_name}"
  node_iam_role_name    = "KarpenterNodeRole-${var.cluster_name}"
  node_access           = var.node_access

  # Class and pool come from the manifests.
  node_classes = {}
  node_pools   = {}
}

resource "karp_node_class" "default" {
  name                          = local.class.name
  teardown                      = module.karp.teardown_id
  instance_profile              = local.class.instance_profile
  ami_family                    = local.class.ami_family
  ami_selector_terms            = local.class.ami_selector_terms
  subnet_selector_terms         = local.class.subnet_selector_terms
  security_group_selector_terms = local.class.security_group_selector_terms
  block_device_mappings         = local.class.block_device_mappings
  metadata_options              = local.class.metadata_options
  kubelet                       = local.class.kubelet
  tags                          = local.class.tags
  user_data                     = local.class.user_data
}

resource "karp_node_pool" "default" {
  name       = local.pool.name
  teardown   = module.karp.teardown_id
  template   = local.pool.template
  disruption = local.pool.disruption
  limits     = local.pool.limits
  weight     = local.pool.weight

  depends_on = [karp_node_class.default]
}

output "notes" {
  description = "What the new API does differently, and what was written out because of it."
  value       = concat(local.class.notes, local.pool.notes)
}
