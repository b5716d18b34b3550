# expect: subnet_selector_terms | at least one term is needed
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = []
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
