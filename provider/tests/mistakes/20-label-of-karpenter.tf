# expect: template.labels | of the domain karpenter.sh only capacity-type may be used
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    labels = { "karpenter.sh/nodepool" = "x" }
  }
}
