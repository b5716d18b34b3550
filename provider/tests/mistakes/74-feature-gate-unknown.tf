# warn: feature_gates | did you mean SpotToSpotConsolidation?
resource "karp_controller" "it" {
  image         = "registry.example.com/karp:0.1.0"
  feature_gates = { SpotToSpotConsolidaton = true }
}
