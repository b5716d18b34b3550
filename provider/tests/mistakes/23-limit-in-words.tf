# expect: limits | "many" is not a quantity
resource "karp_node_pool" "it" {
  name   = "it"
  limits = { cpu = "many" }

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
