output "node_trust_policy" {
  value = provider::karp::node_trust_policy("aws")
}
