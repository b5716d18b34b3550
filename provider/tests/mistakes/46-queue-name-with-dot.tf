# expect: name | must be 1 to 80 letters, digits, - and _
resource "karp_interruption_queue" "it" {
  name = "karp.prod"
}
