resource "karp_crds" "this" {}
