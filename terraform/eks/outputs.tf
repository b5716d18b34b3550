output "cluster_name" {
  description = "The cluster."
  value       = module.eks.cluster_name
}

output "cluster_endpoint" {
  description = "The API server."
  value       = module.eks.cluster_endpoint
}

output "vpc_id" {
  description = "The VPC."
  value       = module.vpc.vpc_id
}

output "private_subnets" {
  description = "The subnets of nodes and pods."
  value       = module.vpc.private_subnets
}

output "node_security_group_id" {
  description = "The security group of the nodes."
  value       = module.eks.node_security_group_id
}

output "oidc_provider_arn" {
  description = "The cluster's IAM OIDC provider, for other service accounts' roles."
  value       = module.karp.oidc_provider_arn
}

output "queue_url" {
  description = "The interruption queue."
  value       = module.karp.queue_url
}

output "node_pool_names" {
  description = "The node pools."
  value       = module.karp.node_pool_names
}
