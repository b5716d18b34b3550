# expect: cluster_name | must be the name of an EKS cluster
resource "karp_instance_profile" "it" {
  cluster_name = "arn:aws:eks:eu-west-1:111122223333:cluster/prod"
  role_name    = "KarpNodeRole-prod"
}
