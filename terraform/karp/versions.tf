terraform {
  # Validations look at other variables.
  required_version = ">= 1.9"

  required_providers {
    karp = {
      source  = "karp/karp"
      version = "~> 0.1"
    }
  }
}
