# expect: disruption.budgets[0].duration | "90s" is not a duration in hours (h) and whole minutes (m), such as 8h or 1h30m
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
