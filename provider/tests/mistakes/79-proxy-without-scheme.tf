# expect: provider.https_proxy | must be a URL with http:// or https://
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  https_proxy  = "proxy.example.com:3128"
}

resource "karp_node_role" "it" {}
