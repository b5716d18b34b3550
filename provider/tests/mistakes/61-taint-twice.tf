# expect: template.taints[1] | the taint "gpu" with the effect NoSchedule is given twice
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
    taints = [
      { key = "gpu", value = "a", effect = "NoSchedule" },
      { key = "gpu", value = "b", effect = "NoSchedule" },
    ]
  }
}
