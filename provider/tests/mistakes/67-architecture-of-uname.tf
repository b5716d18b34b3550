# expect: template.requirements[0].values | kubernetes.io/arch is never "x86_64", only one of amd64, arm64; did you mean amd64?
resource "karp_node_pool" "it" {
  name = "it"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["x86_64"] },
    ]
  }
}
