# A cluster without a single node of its own: the controller runs on Fargate, and every other pod runs on nodes that it launches.

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

provider "karp" {
  region       = var.region
  cluster_name = var.cluster_name
}

module "karp" {
  source = "../../../terraform/karp"

  cluster_name       = var.cluster_name
  subnet_ids         = var.subnet_ids
  security_group_ids = var.security_group_ids

  # The default: no node group is needed, before or after.
  controller_on = "fargate"

  node_pools = {
    default = {
      capacity_types = ["spot"]
      requirements = [
        { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["m"] },
        { key = "karpenter.k8s.aws/instance-cpu", operator = "In", values = ["4", "8"] },
        { key = "karpenter.k8s.aws/instance-hypervisor", operator = "In", values = ["nitro"] },
      ]
      expire_after = "24h"
      limits       = { cpu = "1000", memory = "1000Gi" }
    }

    # Small nodes that spot does not take away, for add-ons that tolerate this taint, as cluster DNS does, and that select the pool
    # (karpenter.sh/nodepool: system): one that only tolerates it goes wherever it is cheapest.
    system = {
      capacity_types = ["on-demand"]
      architectures  = ["amd64", "arm64"]
      requirements   = [{ key = "karpenter.k8s.aws/instance-cpu", operator = "In", values = ["2"] }]
      taints         = [{ key = "CriticalAddonsOnly", effect = "NoSchedule" }]
      limits         = { cpu = "16" }
    }
  }
}

output "controller_role_arn" {
  value = module.karp.iam_role_arn
}

output "interruption_queue_url" {
  value = module.karp.queue_url
}
