resource "karp_node_class" "default" {
  name             = "default"
  instance_profile = karp_instance_profile.this.name

  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ tags = { "karpenter.sh/discovery" = "prod" } }]
  security_group_selector_terms = [{ tags = { "karpenter.sh/discovery" = "prod" } }]

  block_device_mappings = [
    { device_name = "/dev/xvda", ebs = { volume_size = "50Gi", volume_type = "gp3", encrypted = true } },
  ]

  kubelet = {
    max_pods  = 110
    more_json = jsonencode({ topologyManagerPolicy = "restricted" })
  }

  teardown = karp_teardown.this.id
}
