resource "karp_node_role" "this" {
  cluster_name           = "prod"
  additional_policy_arns = { images = "arn:aws:iam::111122223333:policy/pull-images" }
}
