# expect: extra_statements[0].sid | is a statement of karp's own, or was given before
resource "karp_controller_policy" "it" {
  extra_statements = [{
    sid       = "AllowPassingInstanceRole"
    actions   = ["iam:PassRole"]
    resources = ["arn:aws:iam::111122223333:role/other"]
  }]
}
