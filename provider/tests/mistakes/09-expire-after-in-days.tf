# expect: template.expire_after | did you mean 720h?
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    expire_after = "30d"
  }
}
