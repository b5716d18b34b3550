# expect: timeouts.create | must be a duration such as "90s", "20m" or "1h30m", longer than none, not "300"
resource "karp_crds" "it" {
  timeouts = { create = 300 }
}
