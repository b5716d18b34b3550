resource "karp_instance_profile" "this" {
  cluster_name = "prod"
  role_name    = karp_node_role.this.name
}
