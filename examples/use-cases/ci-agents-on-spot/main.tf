# Build agents on spot: a node for a burst of jobs, gone soon after the last of them, and nothing else on it.

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

variable "cpu_limit" {
  description = "The most vCPUs that agents may have together: the upper bound of the bill."
  type        = string
  default     = "128"
}

provider "karp" {
  region       = var.region
  cluster_name = var.cluster_name
}

module "karp" {
  source = "../../../terraform/karp"

  cluster_name       = var.cluster_name
  subnet_ids         = var.subnet_ids
  security_group_ids = var.security_group_ids

  # Jobs come in bursts: wait a little, so that one plan serves the burst.
  controller_settings = { batch_idle_duration = "2s" }

  # Class and pool are written out below.
  node_classes = {}
  node_pools   = {}
}

# Builds want a fast and large disk; the cluster's other nodes do not.
resource "karp_node_class" "ci" {
  name             = "ci"
  teardown         = module.karp.teardown_id
  instance_profile = module.karp.instance_profile_name

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = module.karp.subnet_selector_terms
  security_group_selector_terms = module.karp.security_group_selector_terms

  block_device_mappings = [
    { device_name = "/dev/xvda", ebs = { volume_size = "100Gi", volume_type = "gp3", iops = 6000, throughput = 250, encrypted = true } },
  ]
  # Types with local disks use them for images and work folders.
  instance_store_policy = "RAID0"
}

resource "karp_node_pool" "ci" {
  name     = "ci"
  teardown = module.karp.teardown_id

  template = {
    node_class_ref = { name = karp_node_class.ci.name }
    labels         = { workload = "ci" }
    # Only pods that tolerate this come here.
    taints = [{ key = "workload", value = "ci", effect = "NoSchedule" }]
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot"] },
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
      { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["c", "m"] },
      { key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"] },
      { key = "karpenter.k8s.aws/instance-cpu", operator = "In", values = ["4", "8", "16"] },
    ]
    # No agent outlives a working day, and no job holds up a node for more than an hour.
    expire_after             = "12h"
    termination_grace_period = "1h"
  }

  disruption = {
    # A job that is moved begins anew: nodes go only when they are empty, and then soon.
    consolidation_policy = "WhenEmpty"
    consolidate_after    = "30s"
    budgets              = [{ nodes = "100%" }]
  }

  limits = { cpu = var.cpu_limit }
}

output "node_pool" {
  value = karp_node_pool.ci.name
}
