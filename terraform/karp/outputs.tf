# Named as in terraform-aws-modules/eks//modules/karpenter where the same thing is meant.
#
# What is made of an output that depends on the teardown is destroyed before it: so nodes of classes and pools beside this module are gone
# before their controller.

# --- controller -------------------------------------------------------------------------------------------------------------------

output "iam_role_name" {
  description = "The controller's role."
  value       = karp_controller_role.this.name
}

output "iam_role_arn" {
  description = "The ARN of the controller's role."
  value       = karp_controller_role.this.arn
}

output "iam_role_unique_id" {
  description = "The id by which IAM tells the controller's role from others of its name."
  value       = karp_controller_role.this.unique_id
}

output "namespace" {
  description = "The controller's namespace."
  value       = karp_controller.this.namespace
}

output "service_account" {
  description = "The controller's service account."
  value       = karp_controller.this.service_account
}

output "oidc_provider_arn" {
  description = "The cluster's IAM OIDC provider; null with EKS Pod Identity."
  value       = local.irsa ? local.oidc_provider_arn : null
}

output "fargate_profile_arn" {
  description = "The controller's Fargate profile; null where it runs on nodes."
  value       = one(karp_fargate_profile.this[*].arn)
}

output "fargate_iam_role_arn" {
  description = "The pod execution role of the Fargate profile; null where the controller runs on nodes."
  value       = one(karp_fargate_pod_execution_role.this[*].arn)
}

# --- queue ------------------------------------------------------------------------------------------------------------------------

output "queue_name" {
  description = "The interruption queue; null without one."
  value       = local.queue_name
}

output "queue_arn" {
  description = "The ARN of the interruption queue; null without one."
  value       = local.queue_arn
}

output "queue_url" {
  description = "The URL of the interruption queue; null without one."
  value       = one(karp_interruption_queue.this[*].url)
}

output "event_rules" {
  description = "The EventBridge rule of each kind of event."
  value       = one(karp_interruption_queue.this[*].rules)
}

# --- nodes ------------------------------------------------------------------------------------------------------------------------

output "node_iam_role_name" {
  description = "The nodes' role."
  value       = local.node_iam_role_name
}

output "node_iam_role_arn" {
  description = "The ARN of the nodes' role."
  value       = local.node_iam_role_arn
}

output "node_iam_role_unique_id" {
  description = "The id by which IAM tells the nodes' role from others of its name; null where it was made elsewhere."
  value       = one(karp_node_role.this[*].unique_id)
}

output "node_access_entry_arn" {
  description = "The access entry of the nodes' role; null where the cluster lets them in otherwise."
  value       = one(karp_access_entry.node[*].arn)
}

output "instance_profile_name" {
  description = "The instance profile, for node classes beside this module."
  value       = karp_instance_profile.this.name
  depends_on  = [karp_teardown.this]
}

output "instance_profile_arn" {
  description = "The ARN of the instance profile."
  value       = karp_instance_profile.this.arn
}

output "instance_profile_unique" {
  description = "The id by which IAM tells the instance profile from others of its name."
  value       = karp_instance_profile.this.unique_id
}

output "teardown_id" {
  description = "What ends the nodes at destroy, for classes and pools beside this module to name as their teardown."
  value       = karp_teardown.this.id
}

output "security_group_ids" {
  description = "The security groups that nodes get; empty where they are found by a tag of others."
  value       = local.security_group_ids
}

output "subnet_selector_terms" {
  description = "How classes find subnets, for node classes beside this module."
  value       = local.subnet_selector_terms
  depends_on  = [karp_teardown.this]
}

output "security_group_selector_terms" {
  description = "How classes find security groups, for node classes beside this module."
  value       = local.security_group_selector_terms
  depends_on  = [karp_teardown.this]
}

output "node_class_names" {
  description = "The node classes of this module, for pools beside it."
  value       = { for key, class in karp_node_class.this : key => class.name }
}

output "node_pool_names" {
  description = "The node pools of this module."
  value       = { for key, pool in karp_node_pool.this : key => pool.name }
}
