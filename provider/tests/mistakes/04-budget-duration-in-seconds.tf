# expect: disruption.budgets[0].duration | "90s" does not match
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
      { nodes = "0", schedule = "@daily", duration = "90s" },
    ]
  }
}
