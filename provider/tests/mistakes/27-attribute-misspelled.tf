# expect: limit | Did you mean "limits"?
resource "karp_node_pool" "it" {
  name  = "it"
  limit = { cpu = "10" }

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
