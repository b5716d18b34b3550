# expect: provider.allowed_account_ids | must be twelve digits
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"

  allowed_account_ids = ["1111-2222-3333"]
}

resource "karp_node_role" "it" {}
