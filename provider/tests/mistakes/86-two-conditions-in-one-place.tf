# expect: extra_statements[0].conditions | StringEquals on aws:ResourceTag/team is there twice
resource "karp_controller_policy" "it" {
  extra_statements = [{
    actions   = ["ec2:TerminateInstances"]
    resources = ["*"]
    conditions = [
      { test = "StringEquals", variable = "aws:ResourceTag/team", values = ["a"] },
      { test = "StringEquals", variable = "aws:ResourceTag/team", values = ["b"] },
    ]
  }]
}
