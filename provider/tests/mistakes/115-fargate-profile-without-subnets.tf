# expect: subnet_ids | must have at least 1 elements, not 0
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/KarpFargateRole-prod"
  subnet_ids             = []
  selectors              = [{ namespace = "karpenter" }]
}
