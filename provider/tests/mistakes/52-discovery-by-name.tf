# expect: resource_ids | must be an EC2 resource id such as "subnet-0123abcd"
resource "karp_discovery_tags" "it" {
  resource_ids = ["private"]
  value        = "prod"
}
