resource "karp_controller" "this" {
  cluster_name        = "prod"
  image               = "registry.example.com/karp:0.1.0"
  controller_role_arn = karp_controller_role.this.arn
  interruption_queue  = karp_interruption_queue.this.name

  depends_on = [karp_crds.this]
}
