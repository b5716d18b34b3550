# expect: kubelet.max_pods | take "maxPods" out of the JSON
resource "karp_node_class" "it" {
  name = "it"
  role = "KarpNodeRole-prod"

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]

  kubelet = {
    max_pods  = 58
    more_json = jsonencode({ maxPods = 110 })
  }
}
