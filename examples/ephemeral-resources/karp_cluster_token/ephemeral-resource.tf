ephemeral "karp_cluster_token" "prod" {
  name = "prod"
}

provider "kubernetes" {
  host                   = ephemeral.karp_cluster_token.prod.endpoint
  cluster_ca_certificate = ephemeral.karp_cluster_token.prod.cluster_ca_certificate
  token                  = ephemeral.karp_cluster_token.prod.token
}
