# expect: version | version: the provider decides it; leave it out
resource "karp_crds" "it" {
  version = "1.9.0"
}
