# expect: selectors | must have 1 to 5 elements, not 6
resource "karp_fargate_profile" "it" {
  pod_execution_role_arn = "arn:aws:iam::111122223333:role/KarpFargateRole-prod"
  subnet_ids             = ["subnet-0123456789abcdef0"]
  selectors = [
    { namespace = "karpenter" },
    { namespace = "kube-system" },
    { namespace = "monitoring" },
    { namespace = "logging" },
    { namespace = "ingress" },
    { namespace = "argocd" },
  ]
}
