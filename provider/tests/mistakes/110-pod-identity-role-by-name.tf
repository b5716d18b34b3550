# expect: role_arn | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name", not "KarpControllerRole-prod"
resource "karp_pod_identity_association" "it" {
  namespace       = "karpenter"
  service_account = "karpenter"
  role_arn        = "KarpControllerRole-prod"
}
