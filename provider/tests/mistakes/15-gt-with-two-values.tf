# expect: template.requirements[0] | need exactly one whole number
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-cpu", operator = "Gt", values = ["4", "8"] },
    ]
  }
}
