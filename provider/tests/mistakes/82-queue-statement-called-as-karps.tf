# expect: extra_statements[0].sid | is a statement of karp's own, or was given before
resource "karp_interruption_queue" "it" {
  extra_statements = [{
    sid        = "DenyHTTP"
    principals = [{ type = "Service", identifiers = ["sns.amazonaws.com"] }]
    actions    = ["sqs:SendMessage"]
  }]
}
