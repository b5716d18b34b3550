data "karp_cluster" "prod" {
  name = "prod"
}
