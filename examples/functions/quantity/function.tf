# 1.5
output "quantity" {
  value = provider::karp::quantity("1500m")
}
