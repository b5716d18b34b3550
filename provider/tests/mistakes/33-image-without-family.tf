# expect: resource | amiFamily must be set where amiSelectorTerms hold no alias
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ id = "ami-0123456789abcdef0" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
