# expect: type | must be one of "EC2_LINUX", "EC2_WINDOWS", "FARGATE_LINUX"
resource "karp_access_entry" "it" {
  principal_arn = "arn:aws:iam::111122223333:role/admin"
  type          = "STANDARD"
}
