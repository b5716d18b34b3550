# expect: ami_selector_terms[0].alias | the alias' family must be one of al2, al2023, bottlerocket
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "AL2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
