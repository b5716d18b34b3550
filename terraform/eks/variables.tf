variable "name" {
  description = "The cluster; VPC and subnets are called after it."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", var.name))
    error_message = "name has up to 100 letters, digits, hyphens and underscores, as EKS wants it."
  }
}

variable "region" {
  description = "The region."
  type        = string
}

variable "availability_zones" {
  description = <<-EOT
    The zones of the subnets; the region's a, b and c when null. Some regions, such as us-west-1 and ca-central-1, and some accounts lack
    one of these. Those that there are: aws ec2 describe-availability-zones --region REGION
    --filters Name=opt-in-status,Values=opt-in-not-required --query 'AvailabilityZones[].ZoneName'
  EOT
  type        = list(string)
  default     = null

  validation {
    condition     = var.availability_zones == null || try(length(var.availability_zones) >= 2 && length(var.availability_zones) <= 6, false)
    error_message = "EKS wants subnets in at least two zones; the address plan has room for six."
  }
}

variable "kubernetes_version" {
  description = "The cluster's Kubernetes version."
  type        = string
  default     = "1.35"
}

variable "vpc_cidr" {
  description = "The addresses of the VPC: a /16 gives each zone 4096 addresses for nodes and pods, a /19 512. In a smaller one, public subnets have no room for load balancers."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(regex("/1[6-9]$", var.vpc_cidr)) && can(cidrsubnet(var.vpc_cidr, 8, 255))
    error_message = "vpc_cidr is a range such as 10.0.0.0/16, from a /16, the largest VPC, to a /19: load balancers want public subnets of a /27."
  }
}

variable "single_nat_gateway" {
  description = "One NAT gateway for all zones: cheaper, and down with its zone."
  type        = bool
  default     = true
}

variable "endpoint_public_access_cidrs" {
  description = "Who may reach the API server from outside the VPC: at least where Terraform runs, unless it runs inside."
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "tags" {
  description = "Tags of every AWS object."
  type        = map(string)
  default     = {}
}
