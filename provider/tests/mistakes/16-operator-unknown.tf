# expect: template.requirements[0].operator | must be one of "In", "NotIn", "Exists"
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "Equals", values = ["amd64"] },
    ]
  }
}
