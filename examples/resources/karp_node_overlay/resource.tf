# A Savings Plan takes 30 % off the price of one family.
resource "karp_node_overlay" "savings_plan" {
  name = "savings-plan"

  requirements = [
    { key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i"] },
    { key = "karpenter.sh/capacity-type", operator = "In", values = ["on-demand"] },
  ]
  price_adjustment = "-30%"
}
