# expect: subnet_ids | must begin with "subnet-"
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/fargate"
  subnet_ids             = ["prod-private-a", "prod-private-b"]
  selectors              = [{ namespace = "karpenter" }]
}
