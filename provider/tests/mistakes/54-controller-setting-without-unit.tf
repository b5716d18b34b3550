# expect: settings.batch_idle_duration | must be a duration such as "90s", "20m"
resource "karp_controller" "it" {
  image    = "registry.example.com/karp:0.1.0"
  settings = { batch_idle_duration = "1" }
}
