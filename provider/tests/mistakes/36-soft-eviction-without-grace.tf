# expect: kubelet | each signal of evictionSoft needs an evictionSoftGracePeriod
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]

  kubelet = { eviction_soft = { "memory.available" = "500Mi" } }
}
