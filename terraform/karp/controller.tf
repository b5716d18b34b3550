# The controller, and what clears up after it.

resource "karp_crds" "this" {
  adopt           = var.adopt_crds
  allow_downgrade = var.allow_crd_downgrade
  keep_on_destroy = var.keep_crds_on_destroy
}

resource "karp_controller" "this" {
  cluster_name        = var.cluster_name
  cluster_endpoint    = var.controller.cluster_endpoint
  namespace           = var.namespace
  create_namespace    = var.controller.create_namespace
  service_account     = var.service_account
  image               = var.controller_image
  image_pull_policy   = var.controller.image_pull_policy
  image_pull_secrets  = var.controller.image_pull_secrets
  replicas            = var.controller_replicas
  on_fargate          = local.on_fargate
  controller_role_arn = local.irsa ? karp_controller_role.this.arn : null
  interruption_queue  = local.queue_name

  feature_gates = var.feature_gates
  settings      = var.controller_settings
  log_level     = var.controller.log_level
  extra_args    = var.controller.extra_args
  extra_env     = var.controller.extra_env

  affinity                    = var.controller.affinity
  annotations                 = var.controller.annotations
  labels                      = var.controller.labels
  pod_annotations             = var.controller.pod_annotations
  pod_disruption_budget       = var.controller.pod_disruption_budget
  pod_labels                  = var.controller.pod_labels
  revision_history_limit      = var.controller.revision_history_limit
  service_account_annotations = var.controller.service_account_annotations
  service_annotations         = var.controller.service_annotations
  update_strategy             = var.controller.update_strategy
  host_network                = var.controller.host_network
  metrics_port                = var.controller.metrics_port
  health_probe_port           = var.controller.health_probe_port
  node_selector               = var.controller.node_selector
  priority_class_name         = var.controller.priority_class_name
  resources                   = var.controller.resources
  tolerations                 = var.controller.tolerations
  topology_spread_constraints = var.controller.topology_spread_constraints
  service_monitor             = var.controller.service_monitor
  more_container_json         = var.controller.more_container_json
  more_pod_spec_json          = var.controller.more_pod_spec_json
  force                       = var.controller.force
  force_conflicts             = var.controller.force_conflicts
  timeouts                    = var.controller.timeouts
  wait                        = var.controller.wait

  # All of this must be there when it starts, and until the last node is gone at destroy.
  depends_on = [
    karp_access_entry.node,
    karp_aws_auth_entry.node,
    karp_controller_role.this,
    karp_crds.this,
    karp_discovery_tags.this,
    karp_fargate_profile.this,
    karp_instance_profile.this,
    karp_spot_service_linked_role.this,
  ]
}

# Destroyed after pools and classes and before the controller: it waits until the nodes are gone, and ends what is left of them in AWS.
resource "karp_teardown" "this" {
  cluster_name  = var.cluster_name
  drain_timeout = var.teardown.drain_timeout
  dry_run       = var.teardown.dry_run
  force         = var.teardown.force
  sweep         = var.teardown.sweep
  timeouts      = var.teardown.timeouts

  depends_on = [karp_controller.this]
}
