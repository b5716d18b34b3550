# What the module makes for which inputs, with every AWS and cluster object mocked: applied, so that outputs are known, too.

# The provider checks what it is given, so that what one object tells another must look like it.
mock_provider "karp" {
  mock_resource "karp_node_role" {
    defaults = { arn = "arn:aws:iam::111122223333:role/KarpNodeRole-prod" }
  }

  mock_resource "karp_controller_role" {
    defaults = { arn = "arn:aws:iam::111122223333:role/KarpControllerRole-prod" }
  }

  mock_resource "karp_fargate_pod_execution_role" {
    defaults = { arn = "arn:aws:iam::111122223333:role/KarpFargateRole-prod" }
  }

  mock_resource "karp_oidc_provider" {
    defaults = { arn = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/EXAMPLE" }
  }

  mock_resource "karp_interruption_queue" {
    defaults = { arn = "arn:aws:sqs:eu-west-1:111122223333:Karp-prod" }
  }
}

variables {
  cluster_name       = "prod"
  subnet_ids         = ["subnet-0a", "subnet-0b"]
  security_group_ids = ["sg-0a"]
}

run "defaults_make_all_of_it" {
  assert {
    condition = alltrue([
      length(karp_oidc_provider.this) == 1,
      length(karp_fargate_profile.this) == 1,
      length(karp_fargate_pod_execution_role.this) == 1,
      length(karp_interruption_queue.this) == 1,
      length(karp_node_role.this) == 1,
      length(karp_access_entry.node) == 1,
      length(karp_aws_auth_entry.node) == 0,
      length(karp_discovery_tags.this) == 1,
      length(karp_spot_service_linked_role.this) == 1,
      length(data.karp_cluster.this) == 0,
    ])
    error_message = "Defaults are: Fargate, IRSA, an access entry, a queue and tags."
  }

  assert {
    condition     = karp_discovery_tags.this[0].resource_ids == toset(["subnet-0a", "subnet-0b", "sg-0a"])
    error_message = "Subnets and security groups carry the tag."
  }

  assert {
    condition     = karp_fargate_profile.this[0].selectors[0].namespace == "karpenter" && karp_controller.this.on_fargate
    error_message = "The profile takes the controller's namespace."
  }

  assert {
    condition     = karp_controller_role.this.auth == "irsa" && karp_controller_role.this.oidc_provider_arn == output.oidc_provider_arn
    error_message = "The controller gets its role by the OIDC provider."
  }

  assert {
    condition     = karp_controller.this.controller_role_arn == karp_controller_role.this.arn
    error_message = "The service account names the role."
  }

  assert {
    condition     = karp_crds.this.keep_on_destroy == false
    error_message = "Destroy is complete."
  }

  assert {
    condition     = karp_node_class.this["default"].ami_selector_terms[0].alias == "al2023@latest"
    error_message = "Nodes run AL2023."
  }

  assert {
    condition     = karp_node_pool.this["default"].limits.cpu == "100" && karp_node_pool.this["default"].template.expire_after == "720h"
    error_message = "The default pool is bounded and its nodes do not grow old."
  }

  assert {
    condition = { for one in karp_node_pool.this["default"].template.requirements : one.key => join(" ", one.values) } == {
      "karpenter.sh/capacity-type"            = "spot on-demand"
      "kubernetes.io/arch"                    = "amd64"
      "karpenter.k8s.aws/instance-category"   = "c m r"
      "karpenter.k8s.aws/instance-generation" = "4"
    }
    error_message = "The default pool takes recent c, m and r types."
  }

  assert {
    condition = alltrue([
      output.namespace == "karpenter",
      output.service_account == "karpenter",
      output.node_iam_role_arn == "arn:aws:iam::111122223333:role/KarpNodeRole-prod",
      output.node_class_names == { default = "default" },
      output.node_pool_names == { default = "default" },
      output.queue_url == karp_interruption_queue.this[0].url,
    ])
    error_message = "Outputs tell what was made."
  }

  assert {
    condition = alltrue([
      output.teardown_id == karp_teardown.this.id,
      karp_node_class.this["default"].teardown == output.teardown_id,
      karp_node_pool.this["default"].teardown == output.teardown_id,
    ])
    error_message = "Classes and pools beside the module can name the teardown that its own do."
  }
}

run "on_nodes_with_pod_identity" {
  variables {
    controller_on   = "nodes"
    controller_auth = "pod_identity"
    controller = {
      affinity = {
        pod_anti_affinity = { required_during_scheduling_ignored_during_execution = [{ topology_key = "topology.kubernetes.io/zone" }] }
      }
      host_network                = true
      metrics_port                = 9080
      topology_spread_constraints = [{ max_skew = 1, topology_key = "kubernetes.io/hostname", when_unsatisfiable = "DoNotSchedule" }]
    }
    node_iam_role_additional_policies = { images = "arn:aws:iam::111122223333:policy/pull-images" }
  }

  assert {
    condition     = length(karp_fargate_profile.this) + length(karp_fargate_pod_execution_role.this) + length(karp_oidc_provider.this) == 0
    error_message = "Neither Fargate nor an OIDC provider is needed."
  }

  assert {
    condition     = karp_controller.this.controller_role_arn == null && karp_controller_role.this.auth == "pod_identity"
    error_message = "The association gives the role; the service account has no annotation."
  }

  assert {
    condition     = output.oidc_provider_arn == null && output.fargate_profile_arn == null
    error_message = "Outputs are null for what there is not."
  }

  assert {
    condition = alltrue([
      karp_controller.this.host_network,
      karp_controller.this.metrics_port == 9080,
      karp_controller.this.topology_spread_constraints[0].topology_key == "kubernetes.io/hostname",
      karp_controller.this.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution[0].topology_key == "topology.kubernetes.io/zone",
      karp_node_role.this[0].additional_policy_arns == tomap({ images = "arn:aws:iam::111122223333:policy/pull-images" }),
    ])
    error_message = "Where the controller runs, and what else nodes may, is the user's choice."
  }
}

run "what_others_made" {
  variables {
    create_oidc_provider            = false
    oidc_provider_arn               = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/EXAMPLE"
    create_node_iam_role            = false
    node_iam_role_arn               = "arn:aws:iam::111122223333:role/teams/nodes"
    node_access                     = "none"
    discovery                       = "tagged"
    security_group_ids              = null
    enable_spot_termination         = false
    create_spot_service_linked_role = false
    additional_node_iam_role_arns   = ["arn:aws:iam::111122223333:role/batch"]
  }

  assert {
    condition = karp_controller_role.this.node_role_arns == toset([
      "arn:aws:iam::111122223333:role/teams/nodes", "arn:aws:iam::111122223333:role/batch",
    ])
    error_message = "The controller may give instances the nodes' role, and those that are named besides."
  }

  assert {
    condition = 0 == sum([
      length(karp_oidc_provider.this), length(karp_node_role.this), length(karp_access_entry.node), length(karp_aws_auth_entry.node),
      length(karp_discovery_tags.this), length(karp_interruption_queue.this), length(karp_spot_service_linked_role.this),
      length(data.karp_cluster.this),
    ])
    error_message = "Nothing is made twice, and EKS is not asked."
  }

  assert {
    condition     = karp_instance_profile.this.role_name == "nodes"
    error_message = "The role's name is the end of its ARN."
  }

  assert {
    condition     = karp_controller_role.this.oidc_provider_arn == var.oidc_provider_arn && karp_controller.this.interruption_queue == null
    error_message = "The given provider counts, and there is no queue."
  }

  assert {
    condition     = karp_node_class.this["default"].subnet_selector_terms[0].tags == tomap({ "karpenter.sh/discovery" = "prod" })
    error_message = "The class looks for the tag."
  }

  assert {
    condition     = karp_crds.this.adopt == null && karp_crds.this.allow_downgrade == null
    error_message = "Whether definitions are taken over is the provider block's to say."
  }
}

run "definitions_of_others" {
  variables {
    adopt_crds          = true
    allow_crd_downgrade = true
  }

  assert {
    condition     = karp_crds.this.adopt && karp_crds.this.allow_downgrade
    error_message = "Both permissions reach karp_crds."
  }
}

run "by_ids_and_aws_auth" {
  variables {
    discovery   = "ids"
    node_access = "aws_auth"
  }

  assert {
    condition     = length(karp_discovery_tags.this) + length(karp_access_entry.node) == 0 && length(karp_aws_auth_entry.node) == 1
    error_message = "No tag is put anywhere, and the ConfigMap lets nodes in."
  }

  assert {
    condition     = [for term in karp_node_class.this["default"].subnet_selector_terms : term.id] == ["subnet-0a", "subnet-0b"]
    error_message = "The class names subnets by id."
  }

  assert {
    condition     = [for term in karp_node_class.this["default"].security_group_selector_terms : term.id] == ["sg-0a"]
    error_message = "The class names security groups by id."
  }
}

run "the_cluster_security_group" {
  variables {
    security_group_ids = null
  }

  override_data {
    target = data.karp_cluster.this
    values = { cluster_security_group_id = "sg-cluster" }
  }

  assert {
    condition     = join(" ", output.security_group_ids) == "sg-cluster" && contains(karp_discovery_tags.this[0].resource_ids, "sg-cluster")
    error_message = "Without groups, the cluster security group is asked for and tagged."
  }
}

run "several_pools" {
  variables {
    node_classes = {
      default = {}
      gpu     = { block_device_mappings = [{ device_name = "/dev/xvda", ebs = { volume_size = "200Gi" } }] }
    }
    node_pools = {
      spot      = { capacity_types = ["spot"], architectures = ["amd64", "arm64"], weight = 10 }
      on-demand = { capacity_types = ["on-demand"], limits = { cpu = "20" } }
      gpu = {
        node_class   = "gpu"
        requirements = [{ key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["g"] }]
        taints       = [{ key = "nvidia.com/gpu", effect = "NoSchedule" }]
        limits       = { "nvidia.com/gpu" = "8" }
      }
      typed  = { instance_types = ["m7i.large"], architectures = [] }
      static = { replicas = 3 }
    }
  }

  assert {
    condition     = output.node_pool_names == { for name in ["gpu", "on-demand", "spot", "static", "typed"] : name => name }
    error_message = "There is a pool for each key."
  }

  assert {
    condition = karp_node_pool.this["spot"].weight == 10 && alltrue([
      for one in karp_node_pool.this["spot"].template.requirements : join(" ", one.values) == "spot"
      if one.key == "karpenter.sh/capacity-type"
    ])
    error_message = "Spot comes first."
  }

  assert {
    condition = alltrue([
      karp_node_pool.this["gpu"].template.node_class_ref.name == "gpu",
      karp_node_pool.this["gpu"].template.taints[0].key == "nvidia.com/gpu",
      # Whoever names types takes them of any generation.
      !contains(karp_node_pool.this["gpu"].template.requirements[*].key, "karpenter.k8s.aws/instance-generation"),
    ])
    error_message = "The GPU pool has its class and its taint."
  }

  assert {
    condition = one([
      for requirement in karp_node_pool.this["gpu"].template.requirements : requirement.values
      if requirement.key == "karpenter.k8s.aws/instance-category"
    ]) == tolist(["g"])
    error_message = "A requirement takes the place of the short name of its label."
  }

  assert {
    condition = toset([for requirement in karp_node_pool.this["typed"].template.requirements : requirement.key]) == toset([
      "karpenter.sh/capacity-type", "node.kubernetes.io/instance-type",
    ])
    error_message = "Named types need no category, and an empty list takes a short name away."
  }

  assert {
    condition     = karp_node_pool.this["static"].limits == null && karp_node_pool.this["static"].replicas == 3
    error_message = "A static pool has no CPU limit."
  }
}

run "nothing_to_launch" {
  variables {
    node_classes = {}
    node_pools   = {}
  }

  assert {
    condition     = length(karp_node_class.this) + length(karp_node_pool.this) == 0 && output.node_pool_names == {}
    error_message = "Classes and pools may all be made beside the module."
  }
}
