resource "karp_aws_auth_entry" "nodes" {
  role_arn = karp_node_role.this.arn
}
