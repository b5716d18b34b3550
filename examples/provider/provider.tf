terraform {
  required_providers {
    karp = {
      source  = "karp/karp"
      version = "~> 0.1"
    }
  }
}

provider "karp" {
  region       = "eu-west-1"
  cluster_name = "prod"

  default_tags = {
    tags = { team = "platform" }
  }
  ignore_tags = {
    key_prefixes = ["cost/"]
  }
}
