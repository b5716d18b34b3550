# expect: template.requirements[0].key | unknown label of the domain karpenter.k8s.aws
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-kind", operator = "In", values = ["m5"] },
    ]
  }
}
