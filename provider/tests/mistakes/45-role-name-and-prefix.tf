# expect: name_prefix | An argument named "name_prefix" is not expected here
resource "karp_node_role" "it" {
  name        = "nodes"
  name_prefix = "karp-"
}
