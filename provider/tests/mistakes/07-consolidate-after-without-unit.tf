# expect: disruption.consolidate_after | or Never, such as 90s, 720h or Never; did you mean 30s or 30m?
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }

  disruption = {
    consolidate_after = "30"
  }
}
