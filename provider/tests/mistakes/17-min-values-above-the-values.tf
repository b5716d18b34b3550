# expect: template.requirements[0] | minValues is larger than the number of values
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m5", "c5"], min_values = 3 },
    ]
  }
}
