data "karp_nodes" "all" {}

output "drifted" {
  value = [for node in data.karp_nodes.all.nodes : "${node.name}: ${node.drift_reason}" if node.drifted]
}
