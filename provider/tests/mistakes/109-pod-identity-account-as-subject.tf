# expect: service_account | must be a DNS subdomain (lower-case letters, digits, dashes and dots, at most 253), not "system:serviceaccount:karpenter:karpenter"
resource "karp_pod_identity_association" "it" {
  namespace       = "karpenter"
  service_account = "system:serviceaccount:karpenter:karpenter"
  role_arn        = "arn:aws:iam::111122223333:role/KarpControllerRole-prod"
}
