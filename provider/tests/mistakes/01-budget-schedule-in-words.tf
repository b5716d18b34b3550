# expect: disruption.budgets[0].schedule | "every night" is not a schedule in UTC, which has five fields
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
      { nodes = "0", schedule = "every night", duration = "8h" },
    ]
  }
}
