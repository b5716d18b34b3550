# expect: requirements[0].values | karpenter.sh/capacity-type is never "on_demand"
resource "karp_node_overlay" "it" {
  name             = "it"
  requirements     = [{ key = "karpenter.sh/capacity-type", operator = "In", values = ["on_demand"] }]
  price_adjustment = "-10%"
}
