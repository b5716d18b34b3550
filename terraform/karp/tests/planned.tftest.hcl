# The provider itself plans, from the state alone and without a network: names, and all fields under the
# rules of the API.

provider "karp" {
  region       = "eu-west-1"
  access_key   = "none"
  secret_key   = "none"
  cluster_name = "prod"
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
    condition     = output.node_iam_role_name == "KarpNodeRole-prod" && output.instance_profile_name == "KarpNodeInstanceProfile-prod"
    error_message = "Outputs tell them at plan."
  }
}

run "long_names_are_cut" {
  command = plan

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
}
