# expect: disruption.consolidate_after | stands between alternatives: write one of them
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }

  disruption = {
    consolidate_after = "1m | Never"
  }
}
