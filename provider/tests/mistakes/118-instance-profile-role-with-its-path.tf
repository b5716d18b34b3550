# expect: role_name | must be 1 to 64 characters: letters, digits and any of _ - . + = , @, not "karp/KarpNodeRole-prod"
resource "karp_instance_profile" "it" {
  role_name = "karp/KarpNodeRole-prod"
}
