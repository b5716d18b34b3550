# expect: disruption.budgets[0].schedule | "8" is no day of week
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
      { nodes = "0", schedule = "0 9 * * 8", duration = "8h" },
    ]
  }
}
