# expect: groups | set of string required
resource "karp_aws_auth_entry" "it" {
  role_arn = "arn:aws:iam::111122223333:role/nodes"
  groups   = "system:bootstrappers,system:nodes"
}
