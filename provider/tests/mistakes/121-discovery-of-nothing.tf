# expect: resource_ids | must have at least 1 elements, not 0
resource "karp_discovery_tags" "it" {
  resource_ids = []
  value        = "prod"
}
