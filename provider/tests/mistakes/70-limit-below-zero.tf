# expect: limits | a limit below zero lets the pool make no node: write 0
resource "karp_node_pool" "it" {
  name   = "it"
  limits = { cpu = "-1" }

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
