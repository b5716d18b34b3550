# expect: tags | tag karpenter.sh/nodepool is karp's own
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]

  tags = { "karpenter.sh/nodepool" = "x" }
}
