resource "karp_node_role" "this" {
  cluster_name = "prod"
}
