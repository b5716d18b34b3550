resource "karp_controller" "this" {
  cluster_name        = "prod"
  image               = "registry.example.com/karp:0.1.0"
  controller_role_arn = karp_controller_role.this.arn
  interruption_queue  = karp_interruption_queue.this.name

  settings = {
    batch_idle_duration = "2s"
    max_pod_share       = "25%"
  }
  service_monitor = { labels = { release = "prometheus" } }

  depends_on = [karp_crds.this]
}

# On nodes that others keep: replicas in several zones.
resource "karp_controller" "on_nodes" {
  cluster_name        = "prod"
  image               = "registry.example.com/karp:0.1.0"
  controller_role_arn = karp_controller_role.this.arn
  interruption_queue  = karp_interruption_queue.this.name
  on_fargate          = false

  topology_spread_constraints = [
    { max_skew = 1, topology_key = "topology.kubernetes.io/zone", when_unsatisfiable = "ScheduleAnyway" },
  ]
  affinity = {
    node_affinity = {
      required_during_scheduling_ignored_during_execution = {
        node_selector_terms = [{
          match_expressions = [
            { key = "karpenter.sh/nodepool", operator = "DoesNotExist" },
            { key = "kubernetes.io/arch", operator = "In", values = ["arm64"] },
          ]
        }]
      }
    }
  }

  depends_on = [karp_crds.this]
}
