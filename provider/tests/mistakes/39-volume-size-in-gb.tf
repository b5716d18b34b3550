# expect: block_device_mappings[0].ebs.volume_size | did you mean 20Gi or 20G?
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]

  block_device_mappings = [{ device_name = "/dev/xvda", ebs = { volume_size = "20GB" } }]
}
