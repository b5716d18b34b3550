# expect: limits | did you mean 100Gi or 100G?
resource "karp_node_pool" "it" {
  name   = "it"
  limits = { memory = "100GB" }

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
