resource "karp_spot_service_linked_role" "this" {}
