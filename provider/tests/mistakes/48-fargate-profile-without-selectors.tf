# expect: selectors | must have 1 to 5 elements, not 0
resource "karp_fargate_profile" "it" {
  name                   = "karp"
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/nodes"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors              = []
}
