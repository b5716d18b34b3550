# expect: template.requirements[0].values | only one of on-demand, spot, reserved; did you mean on-demand?
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["ondemand"] },
    ]
  }
}
