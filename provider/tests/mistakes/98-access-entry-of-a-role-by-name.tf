# expect: principal_arn | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name", not "KarpNodeRole-prod"
resource "karp_access_entry" "it" {
  principal_arn = "KarpNodeRole-prod"
}
