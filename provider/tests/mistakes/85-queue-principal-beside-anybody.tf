# expect: extra_statements[0].principals | whoever stands beside it means nothing
resource "karp_interruption_queue" "it" {
  extra_statements = [{
    principals = [{ type = "AWS", identifiers = ["*", "arn:aws:iam::111122223333:root"] }]
    actions    = ["sqs:SendMessage"]
    conditions = [{ test = "StringEquals", variable = "aws:PrincipalOrgID", values = ["o-a1b2c3d4e5"] }]
  }]
}
