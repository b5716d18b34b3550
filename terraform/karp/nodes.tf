# What may be launched: classes say how an instance is made, pools which instances and how many.

locals {
  subnet_selector_terms = var.discovery == "ids" ? [for id in var.subnet_ids : { id = id, tags = null }] : [
    { id = null, tags = local.discovery_tag },
  ]
  security_group_selector_terms = var.discovery == "ids" ? [for id in local.security_group_ids : { id = id, name = null, tags = null }] : [
    { id = null, name = null, tags = local.discovery_tag },
  ]

  aliases = {
    for name, class in var.node_classes : name => [
      { alias = class.ami_alias, id = null, name = null, owner = null, ssm_parameter = null, tags = null },
    ]
  }

  # Which labels each pool's requirements name, and whether it says at all which types it wants.
  named = { for name, pool in var.node_pools : name => [for requirement in pool.requirements : requirement.key] }
  open = {
    for name, pool in var.node_pools : name => alltrue([
      pool.instance_categories == null,
      pool.instance_families == null,
      pool.instance_types == null,
      length(setintersection(local.named[name], [
        "karpenter.k8s.aws/instance-category", "karpenter.k8s.aws/instance-family", "node.kubernetes.io/instance-type",
      ])) == 0,
    ])
  }

  # What the short names of a pool come to, by label; an empty list is none.
  short = {
    for name, pool in var.node_pools : name => {
      "karpenter.k8s.aws/instance-category" = local.open[name] ? ["c", "m", "r"] : coalesce(pool.instance_categories, [])
      "karpenter.k8s.aws/instance-family"   = coalesce(pool.instance_families, [])
      "karpenter.sh/capacity-type"          = pool.capacity_types
      "kubernetes.io/arch"                  = pool.architectures
      "node.kubernetes.io/instance-type"    = coalesce(pool.instance_types, [])
      "topology.kubernetes.io/zone"         = coalesce(pool.zones, [])
    }
  }
  recent = { key = "karpenter.k8s.aws/instance-generation", operator = "Gt", values = ["4"], min_values = null }

  requirements = {
    for name, pool in var.node_pools : name => concat(
      [
        for key, values in local.short[name] : { key = key, operator = "In", values = values, min_values = null }
        if length(values) > 0 && !contains(local.named[name], key)
      ],
      [for requirement in [local.recent] : requirement if local.open[name] && !contains(local.named[name], requirement.key)],
      pool.requirements,
    )
  }

  # A static pool may only limit its nodes.
  limits = {
    for name, pool in var.node_pools : name =>
    pool.limits == null && pool.replicas == null && var.default_cpu_limit != null ? tomap({ cpu = var.default_cpu_limit }) : pool.limits
  }
}

resource "karp_node_class" "this" {
  for_each = var.node_classes

  name             = each.key
  role             = each.value.role
  instance_profile = each.value.role == null ? coalesce(each.value.instance_profile, karp_instance_profile.this.name) : null

  ami_family                    = each.value.ami_family
  ami_selector_terms            = coalesce(each.value.ami_selector_terms, local.aliases[each.key])
  subnet_selector_terms         = coalesce(each.value.subnet_selector_terms, local.subnet_selector_terms)
  security_group_selector_terms = coalesce(each.value.security_group_selector_terms, local.security_group_selector_terms)

  associate_public_ip_address         = each.value.associate_public_ip_address
  block_device_mappings               = each.value.block_device_mappings
  capacity_reservation_selector_terms = each.value.capacity_reservation_selector_terms
  connection_tracking                 = each.value.connection_tracking
  context                             = each.value.context
  cpu_options                         = each.value.cpu_options
  detailed_monitoring                 = each.value.detailed_monitoring
  enclave_options                     = each.value.enclave_options
  instance_store_policy               = each.value.instance_store_policy
  ip_prefix_count                     = each.value.ip_prefix_count
  kubelet                             = each.value.kubelet
  metadata_options                    = each.value.metadata_options
  network_interfaces                  = each.value.network_interfaces
  placement_group_selector            = each.value.placement_group_selector
  user_data                           = each.value.user_data
  tags                                = merge(var.tags, each.value.tags)

  annotations     = each.value.annotations
  labels          = each.value.labels
  adopt           = each.value.adopt
  force_conflicts = each.value.force_conflicts
  wait_for_ready  = each.value.wait_for_ready
  teardown        = karp_teardown.this.id
  timeouts        = each.value.timeouts
}

resource "karp_node_pool" "this" {
  for_each = var.node_pools

  name = each.key

  template = {
    node_class_ref           = { name = karp_node_class.this[each.value.node_class].name }
    requirements             = local.requirements[each.key]
    labels                   = each.value.labels
    annotations              = each.value.annotations
    taints                   = each.value.taints
    startup_taints           = each.value.startup_taints
    expire_after             = each.value.expire_after
    termination_grace_period = each.value.termination_grace_period
  }

  disruption = {
    consolidation_policy = each.value.consolidation_policy
    consolidate_after    = each.value.consolidate_after
    budgets              = each.value.budgets
  }

  limits           = local.limits[each.key]
  weight           = each.value.weight
  replicas         = each.value.replicas
  annotations      = each.value.pool_annotations
  labels           = each.value.pool_labels
  drain_on_destroy = each.value.drain_on_destroy
  adopt            = each.value.adopt
  force_conflicts  = each.value.force_conflicts
  wait_for_ready   = each.value.wait_for_ready
  teardown         = karp_teardown.this.id
  timeouts         = each.value.timeouts
}
