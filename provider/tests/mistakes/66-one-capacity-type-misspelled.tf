# warn: template.requirements[0].values | karpenter.sh/capacity-type is never "Spot"
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["on-demand", "Spot"] },
    ]
  }
}
