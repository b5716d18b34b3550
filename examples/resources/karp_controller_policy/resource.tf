# A role that others make: the policy is attached to it part by part. The names of the parts are known at plan.
resource "karp_controller_policy" "this" {
  cluster_name           = "prod"
  path                   = "/karp/"
  node_role_arns         = [karp_node_role.this.arn]
  interruption_queue_arn = karp_interruption_queue.this.arn
  extra_statements = [{
    sid       = "DescribeVolumes"
    actions   = ["ec2:DescribeVolumes"]
    resources = ["*"]
    conditions = [{
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = ["eu-west-1"]
    }]
  }]
}

# Such as: resource "aws_iam_role_policy_attachment" "controller" {
#   for_each   = karp_controller_policy.this.arns
#   role       = "made-by-the-security-team"
#   policy_arn = each.value
# }
output "controller_policy_arns" {
  value = karp_controller_policy.this.arns
}
