# expect: cluster_name | the provider block names another cluster
provider "karp" {
  cluster_name = "prod"
}

resource "karp_teardown" "it" {
  cluster_name = "staging"
}
