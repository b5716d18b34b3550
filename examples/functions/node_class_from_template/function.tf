locals {
  class = provider::karp::node_class_from_template(yamldecode(<<-EOT
    apiVersion: karpenter.k8s.aws/v1alpha1
    kind: AWSNodeTemplate
    metadata:
      name: default
    spec:
      subnetSelector:
        karpenter.sh/discovery: prod
      securityGroupSelector:
        karpenter.sh/discovery: prod
  EOT
  ), { instance_profile = "KarpenterNodeInstanceProfile-prod" })
}

resource "karp_node_class" "default" {
  name                          = local.class.name
  ami_selector_terms            = local.class.ami_selector_terms
  subnet_selector_terms         = local.class.subnet_selector_terms
  security_group_selector_terms = local.class.security_group_selector_terms
  instance_profile              = local.class.instance_profile
  metadata_options              = local.class.metadata_options
}
