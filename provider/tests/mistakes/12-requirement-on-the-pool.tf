# expect: template.requirements[0].key | of the domain karpenter.sh only capacity-type may be used
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.sh/nodepool", operator = "In", values = ["a"] },
    ]
  }
}
