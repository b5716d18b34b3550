# Two pools side by side: spot for what may be interrupted, on demand for what may not.

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

  node_pools = {
    # Many types to choose from: then EC2 nearly always has one to spare, and takes few back.
    spot = {
      capacity_types = ["spot"]
      architectures  = ["amd64", "arm64"]
      # Pods that ask for neither pool go here first.
      weight = 10
      limits = { cpu = "200" }
    }

    on-demand = {
      capacity_types = ["on-demand"]
      # A node moves only where nobody works: pods here do not like to be moved.
      consolidation_policy = "WhenEmpty"
      consolidate_after    = "5m"
      limits               = { cpu = "100" }
    }
  }
}

output "node_pools" {
  value = module.karp.node_pool_names
}
