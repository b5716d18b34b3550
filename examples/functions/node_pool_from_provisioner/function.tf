locals {
  pool = provider::karp::node_pool_from_provisioner(yamldecode(<<-EOT
    apiVersion: karpenter.sh/v1alpha5
    kind: Provisioner
    metadata:
      name: default
    spec:
      providerRef:
        name: default
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [spot] }
      limits:
        resources:
          cpu: "1000"
      ttlSecondsAfterEmpty: 30
  EOT
  ))
}

resource "karp_node_pool" "default" {
  name       = local.pool.name
  template   = local.pool.template
  disruption = local.pool.disruption
  limits     = local.pool.limits
  weight     = local.pool.weight
}

output "notes" {
  value = local.pool.notes
}
