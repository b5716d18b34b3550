resource "karp_interruption_queue" "this" {
  cluster_name = "prod"
  name         = "karp-prod"
}
