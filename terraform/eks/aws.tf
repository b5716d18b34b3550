# All that this root says about hashicorp/aws. The project's test validates the root without this file, because that provider cannot be
# fetched there: the modules that use it are replaced by stubs (tests/stubs).

provider "aws" {
  region = var.region

  default_tags {
    tags = var.tags
  }
}
