# expect: template.labels | kubernetes.io/arch is never "aarch64"
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot"] },
    ]
    labels = { "kubernetes.io/arch" = "aarch64" }
  }
}
