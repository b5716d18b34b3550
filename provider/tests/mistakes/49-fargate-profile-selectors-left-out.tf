# expect: resource | The argument "selectors" is required
resource "karp_fargate_profile" "it" {
  name                   = "karp"
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/nodes"
  subnet_ids             = ["subnet-0123456789abcdef0"]
}
