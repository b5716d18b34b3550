# expect: template.startup_taints[0] | among taints and startup taints together
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    taints         = [{ key = "cni", effect = "NoExecute" }]
    startup_taints = [{ key = "cni", effect = "NoExecute" }]
  }
}
