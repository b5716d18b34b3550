# expect: role_name | must be 1 to 64 characters: letters, digits
resource "karp_instance_profile" "it" {
  role_name = "arn:aws:iam::111122223333:role/nodes"
}
