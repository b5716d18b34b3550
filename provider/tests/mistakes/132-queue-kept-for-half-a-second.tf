# expect: message_retention_seconds | must be 60 to 1209600, and whole, not 345600.5
resource "karp_interruption_queue" "it" {
  message_retention_seconds = 345600.5
}
