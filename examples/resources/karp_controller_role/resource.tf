resource "karp_controller_role" "this" {
  cluster_name           = "prod"
  oidc_provider_arn      = karp_oidc_provider.this.arn
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
}
