# expect: node_role_arns | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name"
resource "karp_controller_role" "it" {
  auth           = "pod_identity"
  node_role_arns = ["KarpNodeRole-prod"]
}
