# expect: ami_selector_terms | a term with an alias must be the only one
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }, { id = "ami-0123456789abcdef0" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
