resource "karp_node_pool" "default" {
  name = "default"

  template = {
    node_class_ref = { name = karp_node_class.default.name }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot", "on-demand"] },
      { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["c", "m", "r"] },
      { key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"] },
    ]
    expire_after = "720h"
  }

  disruption = {
    consolidate_after = "30s"
    budgets           = [{ nodes = "10%" }]
  }

  limits = { cpu = "200" }

  # Destroyed before it, and left to it where no controller is at work any more.
  teardown = karp_teardown.this.id
}
