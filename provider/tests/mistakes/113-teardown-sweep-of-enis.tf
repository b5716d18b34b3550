# expect: sweep | each element must be one of "instances", "network_interfaces", "volumes"
resource "karp_teardown" "it" {
  sweep = ["instances", "enis"]
}
