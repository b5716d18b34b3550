data "karp_orphans" "prod" {
  name = "prod"
}

check "nothing_is_left" {
  assert {
    condition     = data.karp_orphans.prod.total == 0
    error_message = "Left in AWS: ${jsonencode(data.karp_orphans.prod)}"
  }
}
