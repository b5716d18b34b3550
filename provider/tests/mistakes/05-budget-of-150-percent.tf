# expect: disruption.budgets[0].nodes | "150%" is not a number of nodes, or a share of them from 0% to 100%
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }

  disruption = {
    budgets = [
      { nodes = "150%" },
    ]
  }
}
