# expect: name_prefix | At most one of these may be set
resource "karp_node_role" "it" {
  name        = "nodes"
  name_prefix = "karp-"
}
