# warn: role | an ARN is given where a name is wanted; its end is taken: write "KarpNodeRole-prod"
resource "karp_node_class" "it" {
  name = "it"
  role = "arn:aws:iam::111122223333:role/KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
}
