# expect: permissions_boundary | must be an ARN such as "arn:aws:iam::111122223333:role/name", not "TeamBoundary"
resource "karp_fargate_pod_execution_role" "it" {
  permissions_boundary = "TeamBoundary"
}
