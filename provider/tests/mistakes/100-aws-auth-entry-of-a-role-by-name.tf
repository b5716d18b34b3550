# expect: role_arn | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name", not "KarpNodeRole-prod"
resource "karp_aws_auth_entry" "it" {
  role_arn = "KarpNodeRole-prod"
}
