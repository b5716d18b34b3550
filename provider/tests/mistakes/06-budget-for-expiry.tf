# expect: disruption.budgets[0].reasons | must be one of "Underutilized", "Empty", "Drifted"
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
      { nodes = "1", reasons = ["Expired"] },
    ]
  }
}
