# Everything that node autoscaling needs on one EKS cluster, in one apply: roles, instance profile, Fargate profile, interruption
# queue, discovery tags, CRDs, the controller and a node pool. Nothing has to exist before but the cluster and its network.

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

variable "controller_image" {
  description = "The controller's image."
  type        = string
  default     = "ghcr.io/karp/karp:0.1.0"
}

variable "instance_categories" {
  description = "Instance categories that the default pool may use."
  type        = list(string)
  default     = ["c", "m", "r"]
}

variable "cpu_limit" {
  description = "The most vCPUs that the default pool may run."
  type        = string
  default     = "100"
}

# Stands for the resource or module that creates the cluster: its name is known only after apply.
resource "terraform_data" "cluster" {
  input = var.cluster_name
}

locals {
  cluster_name = terraform_data.cluster.output
}

provider "karp" {
  region       = var.region
  cluster_name = local.cluster_name

  default_tags = {
    tags = { "app.kubernetes.io/managed-by" = "terraform" }
  }
}

# --- identity ---------------------------------------------------------------------------------------------------------------------

resource "karp_oidc_provider" "cluster" {
  cluster_name = local.cluster_name
}

resource "karp_interruption_queue" "this" {
  cluster_name = local.cluster_name
  name         = "karp-${var.cluster_name}"
}

resource "karp_node_role" "this" {
  cluster_name = local.cluster_name
  name         = "KarpNodeRole-${var.cluster_name}"
}

resource "karp_instance_profile" "this" {
  cluster_name = local.cluster_name
  name         = "KarpNodeInstanceProfile-${var.cluster_name}"
  role_name    = karp_node_role.this.name
}

resource "karp_controller_role" "this" {
  cluster_name           = local.cluster_name
  name                   = "KarpControllerRole-${var.cluster_name}"
  oidc_provider_arn      = karp_oidc_provider.cluster.arn
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
  instance_profiles      = "terraform"
}

resource "karp_access_entry" "nodes" {
  cluster_name  = local.cluster_name
  principal_arn = karp_node_role.this.arn
  type          = "EC2_LINUX"
}

# --- where things run -------------------------------------------------------------------------------------------------------------

resource "karp_discovery_tags" "this" {
  resource_ids = setunion(var.subnet_ids, var.security_group_ids)
  value        = local.cluster_name
}

resource "karp_fargate_pod_execution_role" "this" {
  cluster_name = local.cluster_name
  name         = "KarpFargateRole-${var.cluster_name}"
}

resource "karp_fargate_profile" "controller" {
  cluster_name           = local.cluster_name
  name                   = "karpenter"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = var.subnet_ids
  selectors              = [{ namespace = "karpenter" }]
}

# --- the controller ---------------------------------------------------------------------------------------------------------------

resource "karp_crds" "this" {
  keep_on_destroy = false
}

resource "karp_controller" "this" {
  cluster_name        = local.cluster_name
  image               = var.controller_image
  replicas            = 1
  controller_role_arn = karp_controller_role.this.arn
  interruption_queue  = karp_interruption_queue.this.name
  feature_gates       = { SpotToSpotConsolidation = true }

  depends_on = [karp_crds.this, karp_fargate_profile.controller, karp_access_entry.nodes]
}

# Destroyed after class and pool, before the controller: it ends what is left of the nodes, also where no controller runs any more.
resource "karp_teardown" "this" {
  cluster_name = local.cluster_name

  depends_on = [karp_controller.this, karp_discovery_tags.this, karp_instance_profile.this]
}

# --- what it may launch -----------------------------------------------------------------------------------------------------------

resource "karp_node_class" "default" {
  name             = "default"
  instance_profile = karp_instance_profile.this.name

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = local.cluster_name } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = local.cluster_name } }]

  teardown = karp_teardown.this.id
}

resource "karp_node_pool" "default" {
  name = "default"

  template = {
    node_class_ref = { name = karp_node_class.default.name }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot", "on-demand"] },
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
      { key = "karpenter.k8s.aws/instance-category", operator = "In", values = var.instance_categories },
      { key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"] },
    ]
    expire_after = "720h"
  }

  disruption = {
    consolidation_policy = "WhenEmptyOrUnderutilized"
    consolidate_after    = "5s"
    budgets              = [{ nodes = "100%" }]
  }

  limits   = { cpu = var.cpu_limit }
  teardown = karp_teardown.this.id
}

output "interruption_queue_url" {
  value = karp_interruption_queue.this.url
}

output "controller_role_arn" {
  value = karp_controller_role.this.arn
}
