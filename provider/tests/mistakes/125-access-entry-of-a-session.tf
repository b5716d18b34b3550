# expect: principal_arn | must be the ARN of a role such as "arn:aws:iam::111122223333:role/name"
resource "karp_access_entry" "it" {
  principal_arn = "arn:aws:sts::111122223333:assumed-role/KarpNodeRole-prod/i-0123456789abcdef0"
}
