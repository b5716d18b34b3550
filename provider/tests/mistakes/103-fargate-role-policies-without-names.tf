# expect: additional_policy_arns | map of string required
resource "karp_fargate_pod_execution_role" "it" {
  additional_policy_arns = ["arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"]
}
