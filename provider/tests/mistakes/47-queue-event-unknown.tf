# expect: events | must be one of "capacity_reservation", "health", "rebalance", "spot"
resource "karp_interruption_queue" "it" {
  events = ["spot_interruption"]
}
