# expect: template.termination_grace_period | "Never" is not a duration in hours (h), minutes (m) and seconds (s), such as 90s
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    termination_grace_period = "Never"
  }
}
