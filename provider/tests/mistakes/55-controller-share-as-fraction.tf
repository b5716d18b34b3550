# expect: settings.max_pod_share | must be a percentage from 1% to 100%
resource "karp_controller" "it" {
  image    = "registry.example.com/karp:0.1.0"
  settings = { max_pod_share = "0.5" }
}
