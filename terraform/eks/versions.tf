terraform {
  required_version = ">= 1.9"

  # What the modules need of hashicorp/aws, they say themselves; aws.tf configures it.
  required_providers {
    karp = {
      source  = "karp/karp"
      version = "~> 0.1"
    }
  }
}
