# expect: role | "Karp NodeRole" is not the name of a role
resource "karp_node_class" "it" {
  name = "it"
  role = "Karp NodeRole"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
