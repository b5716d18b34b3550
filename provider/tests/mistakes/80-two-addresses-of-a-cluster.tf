# expect: provider.kubernetes.config_path | not both
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"

  kubernetes = {
    host        = "https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com"
    config_path = "~/.kube/config"
  }
}

resource "karp_node_role" "it" {}
