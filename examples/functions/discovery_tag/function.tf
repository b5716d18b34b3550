# { "karpenter.sh/discovery" = "prod" }
output "discovery_tag" {
  value = provider::karp::discovery_tag("prod", false)
}

# { "karpenter.sh/discovery/prod" = "prod" }, for subnets that several clusters share
output "shared_discovery_tag" {
  value = provider::karp::discovery_tag("prod", true)
}
