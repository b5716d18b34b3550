# expect: template.requirements[0].values | values: element 1 is null
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements   = [{ key = "kubernetes.io/arch", operator = "In", values = ["arm64", null] }]
  }
}
