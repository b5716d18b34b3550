# expect: template.requirements[0] | operator In needs at least one value
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In" },
    ]
  }
}
