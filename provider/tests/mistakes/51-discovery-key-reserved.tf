# expect: key | must not begin with "aws:"
resource "karp_discovery_tags" "it" {
  resource_ids = ["subnet-0123456789abcdef0"]
  key          = "aws:discovery"
  value        = "prod"
}
