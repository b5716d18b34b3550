resource "karp_discovery_tags" "this" {
  resource_ids = ["subnet-0123456789abcdef0", "sg-0123456789abcdef0"]
  value        = "prod"
}
