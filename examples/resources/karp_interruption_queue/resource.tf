resource "karp_interruption_queue" "this" {
  cluster_name = "prod"
  name         = "karp-prod"

  extra_statements = [{
    sid        = "AlarmsOfOurs"
    principals = [{ type = "Service", identifiers = ["sns.amazonaws.com"] }]
    actions    = ["sqs:SendMessage"]
    conditions = [{ test = "StringEquals", variable = "aws:SourceAccount", values = ["111122223333"] }]
  }]
}
