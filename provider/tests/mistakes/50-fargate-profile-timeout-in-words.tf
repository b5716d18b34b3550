# expect: timeouts.create | must be a duration such as "90s", "20m"
resource "karp_fargate_profile" "it" {
  name                   = "karp"
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/nodes"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors              = [{ namespace = "karpenter" }]
  timeouts               = { create = "20 minutes" }
}
