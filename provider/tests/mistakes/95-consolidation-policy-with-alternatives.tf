# expect: disruption.consolidation_policy | stands between alternatives: write one of them
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }

  disruption = {
    consolidation_policy = "WhenEmptyOrUnderutilized | WhenEmpty"
  }
}
