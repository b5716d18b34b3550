# expect: name | must be 1 to 64 characters: letters, digits
resource "karp_node_role" "it" {
  name = "karp-node-role-of-the-production-cluster-in-the-eu-west-1-region-of-team-a"
}
