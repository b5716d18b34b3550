# expect: on_conflict | must be one of "error", "overwrite", not "ignore"
resource "karp_discovery_tags" "it" {
  resource_ids = ["subnet-0123456789abcdef0"]
  value        = "prod"
  on_conflict  = "ignore"
}
