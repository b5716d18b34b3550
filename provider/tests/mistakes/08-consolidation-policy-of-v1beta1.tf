# expect: disruption.consolidation_policy | must be one of "WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }

  disruption = {
    consolidation_policy = "WhenUnderutilized"
  }
}
