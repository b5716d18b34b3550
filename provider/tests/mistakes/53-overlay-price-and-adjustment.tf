# expect: resource | price and priceAdjustment exclude each other
resource "karp_node_overlay" "it" {
  name             = "it"
  requirements     = [{ key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] }]
  price            = "0.1"
  price_adjustment = "-10%"
}
