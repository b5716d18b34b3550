resource "karp_pod_identity_association" "this" {
  cluster_name    = "prod"
  namespace       = "apps"
  service_account = "ebs-csi-controller"
  role_arn        = "arn:aws:iam::111122223333:role/ebs-csi"
  tags            = { team = "storage" }
}
