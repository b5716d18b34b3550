# The cluster, the network and the identities. What may be launched is in variables_nodes.tf, the controller in variables_controller.tf.
#
# Whether a resource exists follows from texts and booleans that you write down, never from ids or ARNs: those may be known at apply only.

variable "cluster_name" {
  description = "The EKS cluster. It may be known at apply only."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", var.cluster_name))
    error_message = "cluster_name is the cluster's name, not its ARN: up to 100 letters, digits, hyphens and underscores."
  }
}

variable "tags" {
  description = "Tags of every AWS object that this module makes, besides the provider block's default_tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

# --- network ----------------------------------------------------------------------------------------------------------------------

variable "subnet_ids" {
  description = "Private subnets of the nodes, and of the controller on Fargate."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = length(var.subnet_ids) > 0 || (var.discovery == "tagged" && var.controller_on == "nodes")
    error_message = "Give subnet_ids: nodes are placed there, and the Fargate profile of the controller needs private subnets."
  }
}

variable "fargate_subnet_ids" {
  description = "Private subnets of the controller's Fargate profile, where they are not subnet_ids."
  type        = list(string)
  default     = null
}

variable "security_group_ids" {
  description = "Security groups of the nodes; the cluster security group that EKS made when null."
  type        = list(string)
  default     = null

  validation {
    condition     = var.security_group_ids == null || try(length(var.security_group_ids) > 0, false)
    error_message = "Leave security_group_ids out for the cluster security group, or name at least one group."
  }
}

variable "discovery" {
  description = <<-EOT
    How node classes find subnets and security groups: "tag" puts the discovery tag on them; "tagged" relies on tags that others, such
    as the VPC module, put there; "ids" names their ids in the classes.
  EOT
  type        = string
  default     = "tag"
  nullable    = false

  validation {
    condition     = contains(["tag", "tagged", "ids"], var.discovery)
    error_message = "discovery is \"tag\", \"tagged\" or \"ids\"."
  }
}

variable "discovery_tag_key" {
  description = <<-EOT
    The key of the discovery tag; its value is the cluster's name. Clusters that share subnets take a key each, such as
    karpenter.sh/discovery/prod.
  EOT
  type        = string
  default     = "karpenter.sh/discovery"
  nullable    = false

  validation {
    condition     = length(var.discovery_tag_key) > 0 && length(var.discovery_tag_key) <= 128 && !startswith(var.discovery_tag_key, "aws:")
    error_message = "discovery_tag_key has 1 to 128 characters and does not begin with aws:."
  }
}

# --- identity of the controller ---------------------------------------------------------------------------------------------------

variable "controller_auth" {
  description = <<-EOT
    How the controller gets its IAM role: "irsa" (IAM roles for service accounts) or "pod_identity" (EKS Pod Identity, whose agent must
    run; not on Fargate).
  EOT
  type        = string
  default     = "irsa"
  nullable    = false

  validation {
    condition     = contains(["irsa", "pod_identity"], var.controller_auth)
    error_message = "controller_auth is \"irsa\" or \"pod_identity\"."
  }

  validation {
    condition     = var.controller_auth != "pod_identity" || var.controller_on == "nodes"
    error_message = "EKS Pod Identity does not work on Fargate: take controller_auth = \"irsa\", or controller_on = \"nodes\"."
  }
}

variable "create_oidc_provider" {
  description = "Make the cluster's IAM OIDC provider for \"irsa\", or take over the one that exists. With false, give oidc_provider_arn."
  type        = bool
  default     = true
  nullable    = false
}

variable "oidc_provider_arn" {
  description = "The cluster's IAM OIDC provider, where create_oidc_provider is false."
  type        = string
  default     = null

  validation {
    condition     = var.create_oidc_provider || var.controller_auth != "irsa" || var.oidc_provider_arn != null
    error_message = "With create_oidc_provider = false, IRSA needs oidc_provider_arn."
  }
}

variable "iam_role_name" {
  description = "The controller's role; KarpControllerRole- and the cluster's name when null, shortened with a digest to 64 characters."
  type        = string
  default     = null

  validation {
    condition     = can(regex("^[\\w+=,.@-]{1,64}$", coalesce(var.iam_role_name, "unset")))
    error_message = "iam_role_name has up to 64 letters, digits and characters of +=,.@_-."
  }
}

variable "iam_role_path" {
  description = "The path of all roles and of the instance profile."
  type        = string
  default     = "/"
  nullable    = false

  validation {
    condition     = startswith(var.iam_role_path, "/") && endswith(var.iam_role_path, "/")
    error_message = "iam_role_path begins and ends with a slash."
  }
}

variable "iam_role_permissions_boundary_arn" {
  description = "The policy that bounds all roles of this module."
  type        = string
  default     = null
}

variable "policy_mode" {
  description = "Where the controller's policy is kept: \"inline\" in its role, in \"managed\" policies, or \"auto\": inline as long as it fits."
  type        = string
  default     = "inline"
  nullable    = false

  validation {
    condition     = contains(["auto", "inline", "managed"], var.policy_mode)
    error_message = "policy_mode is \"auto\", \"inline\" or \"managed\"."
  }
}

variable "iam_role_extra_statements" {
  description = "What else the controller may do: statements that follow karp's in its policy, such as kms:Decrypt on the key of queue_kms_master_key_id."
  type = list(object({
    actions = set(string)
    conditions = optional(set(object({
      test     = string
      variable = string
      values   = set(string)
    })))
    effect    = optional(string)
    resources = set(string)
    sid       = optional(string)
  }))
  default = null
}

variable "ami_id_ssm_parameter_arns" {
  description = "SSM parameters of your own that node classes name images by (ssm_parameter), for the controller to read; those of AWS it may read anyway."
  type        = set(string)
  default     = null
}

variable "additional_node_iam_role_arns" {
  description = "Further roles that the controller may give to instances: those of node classes with a role or an instance profile of their own."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "instance_profiles" {
  description = "Who makes the instance profiles of nodes: \"terraform\" (this module; the controller has no right to make any), or the \"controller\", for node classes with a role."
  type        = string
  default     = "terraform"
  nullable    = false

  validation {
    condition     = contains(["controller", "terraform"], var.instance_profiles)
    error_message = "instance_profiles is \"controller\" or \"terraform\"."
  }
}

# --- identity of the nodes --------------------------------------------------------------------------------------------------------

variable "create_node_iam_role" {
  description = "Make the nodes' role. With false, give node_iam_role_arn."
  type        = bool
  default     = true
  nullable    = false
}

variable "node_iam_role_arn" {
  description = "The nodes' role, where create_node_iam_role is false. An instance profile is made for it."
  type        = string
  default     = null

  validation {
    condition     = var.create_node_iam_role || var.node_iam_role_arn != null
    error_message = "With create_node_iam_role = false, give node_iam_role_arn."
  }
}

variable "node_iam_role_name" {
  description = "The nodes' role; KarpNodeRole- and the cluster's name when null, shortened with a digest to 64 characters."
  type        = string
  default     = null

  validation {
    condition     = can(regex("^[\\w+=,.@-]{1,64}$", coalesce(var.node_iam_role_name, "unset")))
    error_message = "node_iam_role_name has up to 64 letters, digits and characters of +=,.@_-."
  }
}

variable "cluster_ip_family" {
  description = "The addresses that pods of the cluster have, \"ipv4\" or \"ipv6\": it decides what the nodes' role lets the VPC CNI do."
  type        = string
  default     = "ipv4"
  nullable    = false

  validation {
    condition     = contains(["ipv4", "ipv6"], var.cluster_ip_family)
    error_message = "cluster_ip_family is \"ipv4\" or \"ipv6\"."
  }
}

variable "node_iam_role_attach_cni_policy" {
  description = "Let the VPC CNI on the nodes give addresses to pods, by their role; false where it has a role of its own."
  type        = bool
  default     = true
  nullable    = false
}

variable "node_iam_role_attach_ssm_policy" {
  description = "Attach AmazonSSMManagedInstanceCore to the nodes' role, for sessions by Systems Manager."
  type        = bool
  default     = true
  nullable    = false
}

variable "node_iam_role_additional_policies" {
  description = "Further managed policies of the nodes' role: ARNs under names of your choice."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "instance_profile_name" {
  description = "The instance profile; KarpNodeInstanceProfile- and the cluster's name when null, shortened to 128 characters."
  type        = string
  default     = null

  validation {
    condition     = can(regex("^[\\w+=,.@-]{1,128}$", coalesce(var.instance_profile_name, "unset")))
    error_message = "instance_profile_name has up to 128 letters, digits and characters of +=,.@_-."
  }
}

variable "node_access" {
  description = <<-EOT
    How the cluster lets nodes in: by an "access_entry", by "aws_auth" (the ConfigMap of older clusters), or "none" where it knows the
    role already.
  EOT
  type        = string
  default     = "access_entry"
  nullable    = false

  validation {
    condition     = contains(["access_entry", "aws_auth", "none"], var.node_access)
    error_message = "node_access is \"access_entry\", \"aws_auth\" or \"none\"."
  }
}

variable "access_entry_type" {
  description = "The type of the access entry: EC2_LINUX, or EC2_WINDOWS."
  type        = string
  default     = "EC2_LINUX"
  nullable    = false

  validation {
    condition     = contains(["EC2_LINUX", "EC2_WINDOWS"], var.access_entry_type)
    error_message = "access_entry_type is EC2_LINUX or EC2_WINDOWS."
  }
}

variable "create_spot_service_linked_role" {
  description = "See to it that the account has the service-linked role of EC2 Spot. An account has one; it stays at destroy."
  type        = bool
  default     = true
  nullable    = false
}

# --- interruptions ----------------------------------------------------------------------------------------------------------------

variable "enable_spot_termination" {
  description = "Make the queue by which the controller hears of spot interruptions, maintenance and instances that stop."
  type        = bool
  default     = true
  nullable    = false
}

variable "queue_name" {
  description = "The queue; Karp- and the cluster's name when null. The EventBridge rules' names begin with it."
  type        = string
  default     = null

  validation {
    condition     = can(regex("^[0-9A-Za-z_-]{1,80}$", coalesce(var.queue_name, "unset")))
    error_message = "queue_name has up to 80 letters, digits, hyphens and underscores."
  }
}

variable "queue_kms_master_key_id" {
  description = "A KMS key of your own that encrypts the queue; SQS's own when null. Its policy must let events.amazonaws.com use it, and the controller needs kms:Decrypt on it, by iam_role_extra_statements."
  type        = string
  default     = null
}
