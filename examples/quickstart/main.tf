# All that node autoscaling needs on one EKS cluster, in one apply. Nothing has to exist before but the cluster and its network; roles,
# queue and profiles are called after the cluster, whose name may be known at apply only.

terraform {
  required_providers {
    karp = { source = "karp/karp", version = "~> 0.1" }
  }
}

variable "region" { type = string }
variable "cluster_name" { type = string }
variable "subnet_ids" { type = set(string) }         # private ones: of the nodes, and of the controller on Fargate
variable "security_group_ids" { type = set(string) } # of the nodes
variable "controller_image" { default = "ghcr.io/karp/karp:0.1.0" }
variable "cpu_limit" { default = "100" } # the most vCPUs that the pool may run

# Stands for the resource or module that creates the cluster.
resource "terraform_data" "cluster" { input = var.cluster_name }

provider "karp" {
  region       = var.region
  cluster_name = terraform_data.cluster.output
}

resource "karp_oidc_provider" "this" {}
resource "karp_interruption_queue" "this" {}
resource "karp_node_role" "this" {}
resource "karp_instance_profile" "this" { role_name = karp_node_role.this.name }
resource "karp_access_entry" "nodes" { principal_arn = karp_node_role.this.arn }
resource "karp_spot_service_linked_role" "this" {} # one for the account, which starts no spot instance without it; it stays at destroy

resource "karp_controller_role" "this" {
  oidc_provider_arn      = karp_oidc_provider.this.arn
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
  instance_profiles      = "terraform" # none for the controller to make: the node class names one
}

resource "karp_discovery_tags" "this" {
  resource_ids = setunion(var.subnet_ids, var.security_group_ids)
  value        = terraform_data.cluster.output
}

resource "karp_fargate_pod_execution_role" "this" {}
resource "karp_fargate_profile" "controller" {
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = var.subnet_ids
  selectors              = [{ namespace = "karpenter" }]
}

resource "karp_crds" "this" { keep_on_destroy = false }
resource "karp_controller" "this" {
  image               = var.controller_image
  replicas            = 1
  controller_role_arn = karp_controller_role.this.arn
  interruption_queue  = karp_interruption_queue.this.name
  feature_gates       = { SpotToSpotConsolidation = true }
  depends_on = [
    karp_crds.this, karp_fargate_profile.controller, karp_access_entry.nodes, karp_spot_service_linked_role.this,
  ]
}

# Destroyed after class and pool and before the controller: it ends what is left of the nodes, also where no controller runs any more.
resource "karp_teardown" "this" {
  depends_on = [karp_controller.this, karp_discovery_tags.this, karp_instance_profile.this]
}

resource "karp_node_class" "default" {
  name                          = "default"
  teardown                      = karp_teardown.this.id
  instance_profile              = karp_instance_profile.this.name
  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = terraform_data.cluster.output } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = terraform_data.cluster.output } }]
}

resource "karp_node_pool" "default" {
  name     = "default"
  teardown = karp_teardown.this.id
  template = {
    node_class_ref = { name = karp_node_class.default.name }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot", "on-demand"] },
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
      { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["c", "m", "r"] },
      { key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"] },
    ]
  }
  disruption = { consolidate_after = "5s", budgets = [{ nodes = "100%" }] }
  limits     = { cpu = var.cpu_limit }
}
