# expect: provider.endpoints.iam | must be a URL with http:// or https://
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  endpoints    = { iam = "localhost:4566" }
}

resource "karp_node_role" "it" {}
