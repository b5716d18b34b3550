# expect: timeouts.create | must be a duration such as "90s", "20m" or "1h30m", longer than none, not "0s"
resource "karp_node_role" "it" {
  name     = "nodes"
  timeouts = { create = "0s" }
}
