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

# The same for a node class: all pools that use it are looked at.
data "karp_disruption_preview" "pinned" {
  name = "default"
  node_class = {
    role                          = "KarpNodeRole-prod"
    ami_selector_terms            = [{ alias = "al2023@v20260115" }]
    subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
    security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  }
}

output "from_when_on" {
  value = data.karp_disruption_preview.pinned.timeline
}
