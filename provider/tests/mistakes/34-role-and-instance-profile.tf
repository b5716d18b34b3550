# expect: resource | exactly one of role and instanceProfile must be set
resource "karp_node_class" "it" {
  name             = "it"
  role             = "KarpNodeRole-prod"
  instance_profile = "nodes"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
