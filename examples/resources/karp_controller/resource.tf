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
