# expect: tags | do not begin with "aws:"
resource "karp_interruption_queue" "it" {
  tags = { "aws:team" = "a" }
}
