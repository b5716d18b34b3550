# The provider itself plans, from the state alone and without a network: names, and all fields under the
# rules of the API.

provider "karp" {
  region       = "eu-west-1"
  access_key   = "none"
  secret_key   = "none"
  cluster_name = "prod"
  offline_plan = true
}

provider "karp" {
  alias        = "long"
  region       = "eu-west-1"
  access_key   = "none"
  secret_key   = "none"
  cluster_name = "a-cluster-name-as-long-as-eks-allows-it-0123456789-0123456789-0123456789-0123456789-0123456789-01234"
  offline_plan = true
}

variables {
  cluster_name       = "prod"
  subnet_ids         = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
  security_group_ids = ["sg-0123456789abcdef0"]
}

run "names_are_known_at_plan" {
  command = plan

  assert {
    condition = alltrue([
      karp_controller_role.this.name == "KarpControllerRole-prod",
      karp_node_role.this[0].name == "KarpNodeRole-prod",
      karp_instance_profile.this.name == "KarpNodeInstanceProfile-prod",
      karp_fargate_pod_execution_role.this[0].name == "KarpFargateRole-prod",
      karp_interruption_queue.this[0].name == "Karp-prod",
    ])
    error_message = "Names are a prefix and the cluster's name."
  }

  assert {
    condition = alltrue([
      output.node_iam_role_name == "KarpNodeRole-prod",
      output.instance_profile_name == "KarpNodeInstanceProfile-prod",
      output.teardown_id == "prod",
    ])
    error_message = "Outputs tell them at plan."
  }
}

run "long_names_are_cut" {
  command = plan

  providers = {
    karp = karp.long
  }

  variables {
    cluster_name = "a-cluster-name-as-long-as-eks-allows-it-0123456789-0123456789-0123456789-0123456789-0123456789-01234"
  }

  assert {
    condition = alltrue([
      length(var.cluster_name) == 100,
      length(karp_controller_role.this.name) == 64,
      length(karp_node_role.this[0].name) == 64,
      length(karp_fargate_pod_execution_role.this[0].name) == 64,
      length(karp_instance_profile.this.name) <= 128,
      length(karp_interruption_queue.this[0].name) <= 80,
    ])
    error_message = "IAM takes 64 characters for a role, 128 for a profile; SQS takes 80."
  }
}

run "each_field_is_taken" {
  command = plan

  variables {
    tags            = { team = "platform" }
    controller_on   = "nodes"
    controller_auth = "pod_identity"
    policy_mode     = "auto"
    feature_gates   = { SpotToSpotConsolidation = true }
    controller_settings = {
      batch_idle_duration = "2s"
      max_pod_share       = "25%"
    }
    controller = {
      log_level   = "debug"
      resources   = { requests = { cpu = "500m", memory = "512Mi" } }
      tolerations = [{ key = "CriticalAddonsOnly", operator = "Exists" }]
    }
    node_classes = {
      default = {
        block_device_mappings = [{ device_name = "/dev/xvda", ebs = { volume_size = "50Gi", volume_type = "gp3", encrypted = true } }]
        kubelet               = { max_pods = 110, system_reserved = { memory = "200Mi" } }
        metadata_options      = { http_put_response_hop_limit = 1 }
        tags                  = { role = "node" }
      }
      windows = { ami_alias = "windows2022@latest" }
    }
    node_pools = {
      default = {
        zones    = ["eu-west-1a", "eu-west-1b"]
        labels   = { team = "platform" }
        budgets  = [{ nodes = "1", reasons = ["Drifted"], schedule = "0 6 * * mon-fri", duration = "14h" }]
        limits   = { cpu = "1000", memory = "1000Gi" }
        weight   = 5
        timeouts = { delete = "30m" }
      }
      static = { replicas = 2, limits = { nodes = "4" } }
    }
    teardown = { drain_timeout = "10m" }
  }

  assert {
    condition     = karp_node_class.this["default"].tags == tomap({ role = "node", team = "platform" })
    error_message = "Instances carry the module's tags and the class's."
  }

  assert {
    condition     = karp_controller.this.settings.max_pod_share == "25%" && karp_controller.this.log_level == "debug"
    error_message = "Settings reach the controller."
  }

  assert {
    condition     = karp_controller_role.this.policy_mode == "auto"
    error_message = "Where the policy is kept may be left to its size."
  }
}

# What an object type does not list, Terraform drops without a word: a class of the module takes all that karp_node_class takes.
run "a_class_is_handed_on_whole" {
  command = plan

  variables {
    ami_id_ssm_parameter_arns     = ["arn:aws:ssm:eu-west-1:111122223333:parameter/images/*"]
    additional_node_iam_role_arns = ["arn:aws:iam::111122223333:role/batch"]
    cluster_ip_family             = "ipv6"
    instance_profiles             = "controller"
    iam_role_extra_statements = [{
      sid        = "ReadEncryptedQueue"
      actions    = ["kms:Decrypt"]
      resources  = ["arn:aws:kms:eu-west-1:111122223333:key/queue"]
      conditions = [{ test = "StringEquals", variable = "kms:ViaService", values = ["sqs.eu-west-1.amazonaws.com"] }]
    }]
    node_classes = {
      default = {
        annotations              = { "example.com/owner" = "platform" }
        labels                   = { team = "platform" }
        connection_tracking      = { tcp_established_timeout = 3600 }
        cpu_options              = { nested_virtualization = "disabled" }
        enclave_options          = { enabled = false }
        ip_prefix_count          = 2
        network_interfaces       = [{ network_card_index = 0, device_index = 0, interface_type = "interface" }]
        placement_group_selector = { name = "together" }
        kubelet = {
          cpu_cfs_quota                   = false
          eviction_soft                   = { "memory.available" = "500Mi" }
          eviction_soft_grace_period      = { "memory.available" = "1m" }
          eviction_max_pod_grace_period   = 60
          image_gc_high_threshold_percent = 80
          image_gc_low_threshold_percent  = 70
        }
        block_device_mappings = [
          { device_name = "/dev/xvda", ebs = { snapshot_id = "snap-0123456789abcdef0", volume_initialization_rate = 100 } },
        ]
        force_conflicts = true
        wait_for_ready  = false
        timeouts        = { delete = "45m" }
      }
      batch = { instance_profile = "batch" }
      made  = { role = "batch" }
    }
    node_pools = { default = { force_conflicts = true, wait_for_ready = false } }
    teardown   = { dry_run = true }
  }

  assert {
    condition = alltrue([
      karp_node_class.this["default"].annotations == tomap({ "example.com/owner" = "platform" }),
      karp_node_class.this["default"].labels == tomap({ team = "platform" }),
      karp_node_class.this["default"].connection_tracking.tcp_established_timeout == 3600,
      karp_node_class.this["default"].cpu_options.nested_virtualization == "disabled",
      karp_node_class.this["default"].enclave_options.enabled == false,
      karp_node_class.this["default"].ip_prefix_count == 2,
      karp_node_class.this["default"].network_interfaces[0].interface_type == "interface",
      karp_node_class.this["default"].placement_group_selector.name == "together",
      karp_node_class.this["default"].block_device_mappings[0].ebs.volume_initialization_rate == 100,
      karp_node_class.this["default"].force_conflicts == true,
      karp_node_class.this["default"].wait_for_ready == false,
      karp_node_class.this["default"].timeouts.delete == "45m",
    ])
    error_message = "All that karp_node_class takes reaches it."
  }

  assert {
    condition = alltrue([
      karp_node_class.this["default"].kubelet.cpu_cfs_quota == false,
      karp_node_class.this["default"].kubelet.eviction_soft == tomap({ "memory.available" = "500Mi" }),
      karp_node_class.this["default"].kubelet.eviction_soft_grace_period == tomap({ "memory.available" = "1m" }),
      karp_node_class.this["default"].kubelet.eviction_max_pod_grace_period == 60,
      karp_node_class.this["default"].kubelet.image_gc_high_threshold_percent == 80,
      karp_node_class.this["default"].kubelet.image_gc_low_threshold_percent == 70,
    ])
    error_message = "All settings of the kubelet reach the class."
  }

  assert {
    condition = alltrue([
      karp_node_class.this["default"].instance_profile == karp_instance_profile.this.name,
      karp_node_class.this["batch"].instance_profile == "batch",
      karp_node_class.this["made"].role == "batch" && karp_node_class.this["made"].instance_profile == null,
      contains(karp_controller_role.this.ami_ssm_parameter_arns, "arn:aws:ssm:eu-west-1:111122223333:parameter/images/*"),
      karp_node_role.this[0].ip_family == "ipv6",
    ])
    error_message = "A class may have an identity of its own, and the controller the rights that classes need."
  }

  assert {
    condition = alltrue([
      karp_controller_role.this.extra_statements[0].sid == "ReadEncryptedQueue",
      karp_controller_role.this.extra_statements[0].effect == "Allow",
      karp_controller_role.this.extra_statements[0].actions == toset(["kms:Decrypt"]),
      karp_controller_role.this.extra_statements[0].resources == toset(["arn:aws:kms:eu-west-1:111122223333:key/queue"]),
      one(karp_controller_role.this.extra_statements[0].conditions).test == "StringEquals",
      one(karp_controller_role.this.extra_statements[0].conditions).variable == "kms:ViaService",
      one(karp_controller_role.this.extra_statements[0].conditions).values == toset(["sqs.eu-west-1.amazonaws.com"]),
    ])
    error_message = "What else the controller may do reaches its role whole."
  }

  assert {
    condition     = karp_teardown.this.dry_run && karp_node_pool.this["default"].force_conflicts && !karp_node_pool.this["default"].wait_for_ready
    error_message = "A rehearsal of the destroy is one, and pools take all that karp_node_pool takes."
  }
}
