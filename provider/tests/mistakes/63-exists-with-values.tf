# warn: template.requirements[0].values | the operator Exists passes values over: leave them out, or write In
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-family", operator = "Exists", values = ["m7i"] },
    ]
  }
}
