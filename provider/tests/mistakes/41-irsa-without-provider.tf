# expect: resource | set it to `karp_oidc_provider.<name>.arn`; or set `auth = "pod_identity"`
resource "karp_controller_role" "it" {
  node_role_arns = ["arn:aws:iam::111122223333:role/nodes"]
}
