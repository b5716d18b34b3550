# expect: region | must be an AWS region such as "eu-west-1", not "eu-west-1a"
resource "karp_discovery_tags" "it" {
  resource_ids = ["subnet-0123456789abcdef0"]
  value        = "prod"
  region       = "eu-west-1a"
}
