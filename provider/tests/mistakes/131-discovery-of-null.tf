# expect: resource_ids | resource_ids: it is required, and null here
resource "karp_discovery_tags" "it" {
  resource_ids = null
  value        = "prod"
}
