variable "node_classes" {
  description = "Node classes by name: how instances are made. What is left out is an AL2023 node in the subnets and groups of this module."
  type = map(object({
    ami_alias  = optional(string, "al2023@latest")
    ami_family = optional(string)
    ami_selector_terms = optional(list(object({
      alias         = optional(string)
      id            = optional(string)
      name          = optional(string)
      owner         = optional(string)
      ssm_parameter = optional(string)
      tags          = optional(map(string))
    })))
    subnet_selector_terms         = optional(list(object({ id = optional(string), tags = optional(map(string)) })))
    security_group_selector_terms = optional(list(object({ id = optional(string), name = optional(string), tags = optional(map(string)) })))
    capacity_reservation_selector_terms = optional(list(object({
      id                      = optional(string)
      instance_match_criteria = optional(string)
      owner_id                = optional(string)
      tags                    = optional(map(string))
    })))
    placement_group_selector    = optional(object({ id = optional(string), name = optional(string) }))
    associate_public_ip_address = optional(bool)
    block_device_mappings = optional(list(object({
      device_name = optional(string)
      root_volume = optional(bool)
      ebs = optional(object({
        delete_on_termination      = optional(bool)
        encrypted                  = optional(bool)
        iops                       = optional(number)
        kms_key_id                 = optional(string)
        snapshot_id                = optional(string)
        throughput                 = optional(number)
        volume_initialization_rate = optional(number)
        volume_size                = optional(string)
        volume_type                = optional(string)
      }))
    })))
    connection_tracking = optional(object({
      tcp_established_timeout = optional(number)
      udp_stream_timeout      = optional(number)
      udp_timeout             = optional(number)
    }))
    context               = optional(string)
    cpu_options           = optional(object({ nested_virtualization = optional(string) }))
    detailed_monitoring   = optional(bool)
    enclave_options       = optional(object({ enabled = bool }))
    instance_store_policy = optional(string)
    ip_prefix_count       = optional(number)
    kubelet = optional(object({
      cluster_dns                     = optional(list(string))
      cpu_cfs_quota                   = optional(bool)
      eviction_hard                   = optional(map(string))
      eviction_max_pod_grace_period   = optional(number)
      eviction_soft                   = optional(map(string))
      eviction_soft_grace_period      = optional(map(string))
      image_gc_high_threshold_percent = optional(number)
      image_gc_low_threshold_percent  = optional(number)
      kube_reserved                   = optional(map(string))
      max_pods                        = optional(number)
      more_json                       = optional(string)
      pods_per_core                   = optional(number)
      system_reserved                 = optional(map(string))
    }))
    metadata_options = optional(object({
      http_endpoint               = optional(string)
      http_protocol_ipv6          = optional(string)
      http_put_response_hop_limit = optional(number)
      http_tokens                 = optional(string)
    }))
    network_interfaces = optional(list(object({ device_index = number, interface_type = string, network_card_index = number })))
    tags               = optional(map(string), {}) # of instances, volumes and launch templates
    user_data          = optional(string)

    # Whose identity instances have: this module's instance profile, or one of these.
    instance_profile = optional(string)
    role             = optional(string)

    annotations     = optional(map(string)) # of the class
    labels          = optional(map(string)) # of the class, to select it by
    adopt           = optional(bool)
    force_conflicts = optional(bool)
    wait_for_ready  = optional(bool)
    timeouts = optional(object({
      create = optional(string)
      read   = optional(string)
      update = optional(string)
      delete = optional(string)
    }))
  }))
  default  = { default = {} }
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.node_classes) : can(regex("^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$", name))])
    error_message = "The keys of node_classes name objects of the cluster: up to 63 lower-case letters, digits, hyphens and dots."
  }

  validation {
    condition     = alltrue([for class in values(var.node_classes) : class.role == null || class.instance_profile == null])
    error_message = "A node class has a role or an instance_profile, not both."
  }

  validation {
    condition     = alltrue([for class in values(var.node_classes) : class.role == null || var.instance_profiles == "controller"])
    error_message = "The controller makes the instance profile of a node class with a role: that takes instance_profiles = \"controller\"."
  }
}

variable "node_pools" {
  description = <<-EOT
    Node pools by name: which nodes may be launched, how many, and when they go. A pool that says nothing takes spot and on-demand nodes
    of c, m and r types from the fifth generation on; one that names categories, families or types takes what it names.
  EOT
  type = map(object({
    node_class = optional(string, "default")

    # Requirements by short names; an empty list takes one away, as does a requirement of the same label below.
    capacity_types      = optional(list(string), ["spot", "on-demand"])
    architectures       = optional(list(string), ["amd64"])
    zones               = optional(list(string))
    instance_categories = optional(list(string))
    instance_families   = optional(list(string))
    instance_types      = optional(list(string))
    requirements = optional(list(object({
      key        = string
      operator   = string
      values     = optional(list(string))
      min_values = optional(number)
    })), [])

    labels                   = optional(map(string)) # of the nodes
    annotations              = optional(map(string)) # of the nodes
    pool_annotations         = optional(map(string)) # of the pool, such as karp.sh/consolidation-floor
    pool_labels              = optional(map(string)) # of the pool, to select it by
    expire_after             = optional(string, "720h")
    termination_grace_period = optional(string)
    taints = optional(list(object({
      key        = string
      effect     = string
      time_added = optional(string)
      value      = optional(string)
    })))
    startup_taints = optional(list(object({
      key        = string
      effect     = string
      time_added = optional(string)
      value      = optional(string)
    })))

    consolidation_policy = optional(string, "WhenEmptyOrUnderutilized")
    consolidate_after    = optional(string, "30s")
    budgets = optional(list(object({
      nodes    = string
      reasons  = optional(set(string))
      schedule = optional(string)
      duration = optional(string)
    })), [{ nodes = "10%" }])

    limits           = optional(map(string))
    weight           = optional(number)
    replicas         = optional(number)
    drain_on_destroy = optional(bool)
    adopt            = optional(bool)
    force_conflicts  = optional(bool)
    wait_for_ready   = optional(bool)
    timeouts = optional(object({
      create = optional(string)
      read   = optional(string)
      update = optional(string)
      delete = optional(string)
    }))
  }))
  default  = { default = {} }
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.node_pools) : can(regex("^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$", name))])
    error_message = "The keys of node_pools name objects of the cluster: up to 63 lower-case letters, digits, hyphens and dots."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : contains(keys(var.node_classes), pool.node_class)])
    error_message = "Each node_class in node_pools is a key of node_classes. Write a karp_node_pool beside this module for other classes."
  }

  validation {
    condition = alltrue(flatten([
      for pool in values(var.node_pools) : [for type in pool.capacity_types : contains(["spot", "on-demand", "reserved"], type)]
    ]))
    error_message = "capacity_types are \"spot\", \"on-demand\" and \"reserved\"."
  }

  validation {
    condition = alltrue(flatten([
      for pool in values(var.node_pools) : [for architecture in pool.architectures : contains(["amd64", "arm64"], architecture)]
    ]))
    error_message = "architectures are \"amd64\" and \"arm64\"."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) :
      contains(["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"], pool.consolidation_policy)
    ])
    error_message = "consolidation_policy is \"WhenEmpty\", \"WhenEmptyOrUnderutilized\" or \"Balanced\"."
  }
}

variable "default_cpu_limit" {
  description = "The most vCPUs that a pool without limits of its own may run; null for no limit."
  type        = string
  default     = "100"
}
