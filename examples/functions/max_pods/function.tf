# 29 with one address for each pod
output "max_pods" {
  value = provider::karp::max_pods("m7i.large", false, 0)
}

# 110 with prefix delegation
output "max_pods_with_prefixes" {
  value = provider::karp::max_pods("m7i.large", true, 0)
}
