# expect: resource | Set `cluster_name` here, or in the provider block
provider "karp" {
  region     = "eu-west-1"
  access_key = "none"
  secret_key = "none"
}

resource "karp_node_role" "it" {}
