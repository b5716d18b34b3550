# expect: instance_profile | without ARN and path: write "nodes"
resource "karp_node_class" "it" {
  name             = "it"
  instance_profile = "arn:aws:iam::111122223333:instance-profile/nodes"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
