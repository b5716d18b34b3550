# expect: drain_timeout | must be a duration such as "90s", "20m" or "1h30m", not "Never"
resource "karp_teardown" "it" {
  drain_timeout = "Never"
}
