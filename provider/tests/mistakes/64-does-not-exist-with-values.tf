# warn: template.requirements[0].values | leave them out, or write NotIn to forbid them
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-gpu-name", operator = "DoesNotExist", values = ["t4"] },
    ]
  }
}
