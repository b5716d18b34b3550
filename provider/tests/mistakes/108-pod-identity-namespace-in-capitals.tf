# expect: namespace | must be a DNS label (lower-case letters, digits and dashes, at most 63), not "Karpenter"
resource "karp_pod_identity_association" "it" {
  namespace       = "Karpenter"
  service_account = "karpenter"
  role_arn        = "arn:aws:iam::111122223333:role/KarpControllerRole-prod"
}
