# expect: provider.default_tags.tags | do not begin with "aws:"
provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  default_tags = { tags = { "aws:team" = "a" } }
}

resource "karp_node_role" "it" {}
