# expect: resource | a static pool (replicas set) supports no weight
resource "karp_node_pool" "it" {
  name     = "it"
  replicas = 2
  weight   = 10

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
