# Stands for terraform-aws-modules/vpc/aws where that cannot be fetched: the inputs and outputs that the root uses, under the same names.
# Ids are known at apply only, as the real ones are.

variable "name" {
  type = string
}

variable "cidr" {
  type = string
}

variable "azs" {
  type = list(string)
}

variable "private_subnets" {
  type = list(string)
}

variable "public_subnets" {
  type = list(string)
}

variable "enable_nat_gateway" {
  type = bool
}

variable "single_nat_gateway" {
  type = bool
}

variable "private_subnet_tags" {
  type = map(string)
}

variable "public_subnet_tags" {
  type = map(string)
}

resource "terraform_data" "vpc" {
  input = "vpc-${var.name}"
}

resource "terraform_data" "private" {
  count = length(var.private_subnets)
  input = "subnet-${var.azs[count.index]}-private"
}

output "vpc_id" {
  value = terraform_data.vpc.output
}

output "private_subnets" {
  value = terraform_data.private[*].output
}

# The real module has no such output; the test reads in the plan which tags subnets would carry.
output "given" {
  value = {
    cidrs = { private = var.private_subnets, public = var.public_subnets }
    tags  = { private = var.private_subnet_tags, public = var.public_subnet_tags }
  }
}
