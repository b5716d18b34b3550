# expect: pod_execution_role_arn | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name", not "KarpFargateRole-prod"
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "KarpFargateRole-prod"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors              = [{ namespace = "karpenter" }]
}
