# expect: template.requirements[0].values | only one of linux, windows; did you mean linux?
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/os", operator = "In", values = ["Linux"] },
    ]
  }
}
