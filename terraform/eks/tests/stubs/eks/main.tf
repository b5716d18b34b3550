# Stands for terraform-aws-modules/eks/aws where that cannot be fetched: the inputs and outputs that the root uses, under the same names.
# The cluster's name is known at apply only, as the real one is.

variable "name" {
  type = string
}

variable "kubernetes_version" {
  type = string
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  type = list(string)
}

variable "endpoint_public_access" {
  type = bool
}

variable "endpoint_public_access_cidrs" {
  type = list(string)
}

variable "enable_cluster_creator_admin_permissions" {
  type = bool
}

variable "enable_irsa" {
  type = bool
}

variable "fargate_profiles" {
  type = map(object({ selectors = list(object({ namespace = string, labels = optional(map(string)) })) }))
}

variable "addons" {
  type = map(object({ before_compute = optional(bool), configuration_values = optional(string) }))
}

variable "node_security_group_additional_rules" {
  type = map(object({
    description = optional(string)
    protocol    = optional(string)
    from_port   = optional(number)
    to_port     = optional(number)
    type        = optional(string)
    self        = optional(bool)
  }))
}

variable "node_security_group_tags" {
  type = map(string)
}

resource "terraform_data" "cluster" {
  input = var.name
}

resource "terraform_data" "groups" {
  input = { cluster = "sg-cluster", nodes = "sg-nodes" }
}

output "cluster_name" {
  value = terraform_data.cluster.output
}

output "cluster_endpoint" {
  value = "https://${terraform_data.cluster.output}.invalid"
}

output "cluster_primary_security_group_id" {
  value = terraform_data.groups.output.cluster
}

output "node_security_group_id" {
  value = terraform_data.groups.output.nodes
}

# The real module has no such output; the test reads in the plan what the nodes' security group would be.
output "given" {
  value = { rules = var.node_security_group_additional_rules, tags = var.node_security_group_tags }
}
