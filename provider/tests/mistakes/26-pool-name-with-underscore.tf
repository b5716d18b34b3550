# expect: name | must be a DNS subdomain (lower-case letters, digits, dashes and dots
resource "karp_node_pool" "it" {
  name = "spot_pool"

  template = {
    node_class_ref = { name = "default" }
    requirements = [
      { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
    ]
  }
}
