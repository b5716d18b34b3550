resource "karp_teardown" "this" {
  cluster_name = "prod"

  # Destroyed before these: the network, and the controller that drains the nodes.
  depends_on = [module.vpc, karp_controller.this]
}

# Destroyed before the teardown: whatever could make nodes.
resource "karp_node_pool" "default" {
  name = "default"
  template = {
    node_class_ref = { name = "default" }
    requirements   = [{ key = "kubernetes.io/arch", operator = "In", values = ["amd64"] }]
  }
  teardown = karp_teardown.this.id
}
