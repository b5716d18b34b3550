# expect: url | url: the provider decides it; leave it out
resource "karp_oidc_provider" "it" {
  url = "https://oidc.eks.eu-west-1.amazonaws.com/id/0123456789ABCDEF"
}
