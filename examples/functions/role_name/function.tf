# "KarpNodeRole-prod"; a long name ends on a digest
output "role_name" {
  value = provider::karp::role_name("KarpNodeRole-", "prod")
}
