# expect: weight | must be 1 to 100
resource "karp_node_pool" "it" {
  name   = "it"
  weight = 0

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
