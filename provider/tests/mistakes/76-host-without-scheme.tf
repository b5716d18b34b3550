# expect: provider.kubernetes.host | must be a URL with http:// or https://
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  access_key   = "none"
  secret_key   = "none"
  kubernetes   = { host = "0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com" }
}

resource "karp_node_role" "it" {}
