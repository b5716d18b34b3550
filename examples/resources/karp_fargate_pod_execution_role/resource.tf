resource "karp_fargate_pod_execution_role" "this" {
  cluster_name = "prod"
}
