# Nodes that are never old: they expire after a week, follow new images, and are replaced when the night leaves room for it.

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

variable "ami_alias" {
  description = "The nodes' image. A version in place of latest holds it still until you say otherwise."
  type        = string
  default     = "al2023@latest"
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

  node_classes = {
    default = { ami_alias = var.ami_alias }
  }

  node_pools = {
    default = {
      # A node's life: a week, and then two hours for its pods to leave.
      expire_after             = "168h"
      termination_grace_period = "2h"

      # The strictest budget that holds counts.
      budgets = [
        # Empty and badly used nodes: a tenth at a time, at any hour.
        { nodes = "10%", reasons = ["Empty", "Underutilized"] },
        # Drift, which a new image or an edit of this file brings: two at a time ...
        { nodes = "2", reasons = ["Drifted"] },
        # ... and none from 6 to 20 o'clock UTC on working days.
        { nodes = "0", reasons = ["Drifted"], schedule = "0 6 * * mon-fri", duration = "14h" },
      ]
    }
  }
}

data "karp_nodes" "all" {
  depends_on = [module.karp]
}

# Each plan warns of nodes that are not what their pool and class say any more.
check "nodes_are_current" {
  assert {
    condition = alltrue([for node in data.karp_nodes.all.nodes : !node.drifted])
    error_message = join("\n", concat(
      ["These nodes have drifted and wait for their turn:"],
      [for node in data.karp_nodes.all.nodes : "${node.name}: ${node.drift_reason}" if node.drifted],
    ))
  }
}

output "node_pools" {
  value = module.karp.node_pool_names
}
