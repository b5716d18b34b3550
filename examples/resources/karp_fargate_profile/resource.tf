resource "karp_fargate_profile" "this" {
  cluster_name           = "prod"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
  selectors              = [{ namespace = "karpenter" }]
}
