# expect: selectors | list of object required
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/KarpFargateRole-prod"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors              = { namespace = "karpenter" }
}
