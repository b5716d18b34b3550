output "controller_policy" {
  value = provider::karp::controller_policy({
    cluster_name           = "prod"
    region                 = "eu-west-1"
    account_id             = "111122223333"
    node_role_arns         = ["arn:aws:iam::111122223333:role/KarpNodeRole-prod"]
    interruption_queue_arn = "arn:aws:sqs:eu-west-1:111122223333:prod"
  })
}
