# expect: provider.https_proxy | must be a URL with http:// or https://, such as "http://proxy:3128", not "***@proxy.example.com:3128"
# never: hunter2
variable "proxy" {
  type      = string
  sensitive = true
  default   = "karp:hunter2@proxy.example.com:3128"
}

provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"
  https_proxy  = var.proxy
}

resource "karp_node_role" "it" {}
