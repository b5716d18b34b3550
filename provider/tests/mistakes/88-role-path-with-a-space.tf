# expect: path | must begin and end with /
resource "karp_node_role" "it" {
  path = "/my team/"
}
