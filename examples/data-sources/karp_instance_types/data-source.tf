data "karp_instance_types" "small_arm" {
  requirements = [
    { key = "kubernetes.io/arch", operator = "In", values = ["arm64"] },
    { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["c", "m", "r"] },
    { key = "karpenter.k8s.aws/instance-cpu", operator = "Lt", values = ["5"] },
    { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot"] },
  ]
}

output "cheapest" {
  value = data.karp_instance_types.small_arm.names[0]
}
