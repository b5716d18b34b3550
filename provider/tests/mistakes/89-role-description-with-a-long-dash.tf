# expect: description | Latin-1
resource "karp_node_role" "it" {
  description = "Nodes — of karp"
}
