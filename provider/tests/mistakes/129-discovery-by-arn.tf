# expect: resource_ids | must be an EC2 resource id such as "subnet-0123abcd"
resource "karp_discovery_tags" "it" {
  resource_ids = ["arn:aws:ec2:eu-west-1:111122223333:subnet/subnet-0123456789abcdef0"]
  value        = "prod"
}
