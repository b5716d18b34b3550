# expect: resources.limits | did you mean 1Gi or 1G?
resource "karp_controller" "it" {
  image     = "registry.example.com/karp:0.1.0"
  resources = { limits = { memory = "1GB" } }
}
