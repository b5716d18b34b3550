# expect: provider.assume_role_with_web_identity.web_identity_token | not both
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"

  assume_role_with_web_identity = {
    role_arn                = "arn:aws:iam::111122223333:role/ci"
    web_identity_token      = "a.b.c"
    web_identity_token_file = "/ci/token"
  }
}

resource "karp_node_role" "it" {}
