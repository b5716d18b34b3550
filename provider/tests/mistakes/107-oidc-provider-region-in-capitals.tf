# expect: region | must be an AWS region such as "eu-west-1", not "EU-WEST-1"
resource "karp_oidc_provider" "it" {
  region = "EU-WEST-1"
}
