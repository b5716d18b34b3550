# expect: thumbprint_list | An argument named "thumbprint_list" is not expected here
resource "karp_oidc_provider" "it" {
  thumbprint_list = ["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"]
}
