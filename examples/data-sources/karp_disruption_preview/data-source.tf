data "karp_disruption_preview" "arm" {
  name = "default"
  template = {
    node_class_ref = { name = "default" }
    requirements   = [{ key = "kubernetes.io/arch", operator = "In", values = ["arm64"] }]
  }
}

output "would_be_replaced" {
  value = [for node in data.karp_disruption_preview.arm.drifting : node.name]
}
