# expect: template.requirements[0].min_values | must be at most 50, is 60
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-family", operator = "Exists", min_values = 60 },
    ]
  }
}
