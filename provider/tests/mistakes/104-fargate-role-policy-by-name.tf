# expect: additional_policy_arns | each element must be an ARN such as "arn:aws:iam::111122223333:role/name", not "CloudWatchAgentServerPolicy"
resource "karp_fargate_pod_execution_role" "it" {
  additional_policy_arns = { logs = "CloudWatchAgentServerPolicy" }
}
