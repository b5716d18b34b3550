# expect: selectors[0].namespace | must be the name of a namespace
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/fargate"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors              = [{ namespace = "Karpenter" }]
}
