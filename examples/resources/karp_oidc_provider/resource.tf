resource "karp_oidc_provider" "this" {
  cluster_name = "prod"
}
