# expect: disruption.budgets[0].schedule | has not five fields
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
      { nodes = "0", schedule = "0 0 9 * * mon", duration = "8h" },
    ]
  }
}
