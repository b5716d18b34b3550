# expect: extra_statements[0].principals | "*" lets anybody in
resource "karp_interruption_queue" "it" {
  extra_statements = [{
    principals = [{ type = "AWS", identifiers = ["*"] }]
    actions    = ["sqs:SendMessage"]
  }]
}
