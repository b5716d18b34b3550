# expect: template.taints[0].effect | must be one of "NoSchedule", "PreferNoSchedule", "NoExecute"
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    taints = [{ key = "gpu", effect = "NoRun" }]
  }
}
