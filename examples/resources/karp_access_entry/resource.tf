resource "karp_access_entry" "this" {
  cluster_name  = "prod"
  principal_arn = karp_node_role.this.arn
  type          = "EC2_LINUX"
}
