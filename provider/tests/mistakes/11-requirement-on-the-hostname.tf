# expect: template.requirements[0].key | label kubernetes.io/hostname is each node's own
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/hostname", operator = "In", values = ["a"] },
    ]
  }
}
