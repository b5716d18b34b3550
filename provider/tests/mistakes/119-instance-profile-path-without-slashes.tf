# expect: path | must begin and end with /
resource "karp_instance_profile" "it" {
  role_name = "KarpNodeRole-prod"
  path      = "karp"
}
