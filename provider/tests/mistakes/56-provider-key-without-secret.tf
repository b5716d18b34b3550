# expect: provider.access_key | These must be set together: access_key, secret_key
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  access_key   = "AKIAIOSFODNN7EXAMPLE"
}

resource "karp_node_role" "it" {}
