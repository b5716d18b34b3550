variable "controller_on" {
  description = <<-EOT
    Where the controller runs: on "fargate", so that the cluster needs no other node, or on "nodes" that others keep, such as a managed
    node group.
  EOT
  type        = string
  default     = "fargate"
  nullable    = false

  validation {
    condition     = contains(["fargate", "nodes"], var.controller_on)
    error_message = "controller_on is \"fargate\" or \"nodes\"."
  }
}

variable "namespace" {
  description = "The controller's namespace. On Fargate, all of its pods run there."
  type        = string
  default     = "karpenter"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.namespace))
    error_message = "namespace has up to 63 lower-case letters, digits and hyphens."
  }

  validation {
    condition     = var.controller_on != "fargate" || !contains(["default", "kube-system"], var.namespace)
    error_message = "On Fargate, take a namespace of the controller's own: the profile moves every pod of the namespace to Fargate."
  }
}

variable "service_account" {
  description = "The controller's service account."
  type        = string
  default     = "karpenter"
  nullable    = false
}

variable "fargate_profile_name" {
  description = "The controller's Fargate profile."
  type        = string
  default     = "karpenter"
  nullable    = false
}

variable "fargate_iam_role_name" {
  description = "The pod execution role; KarpFargateRole- and the cluster's name when null, shortened with a digest to 64 characters."
  type        = string
  default     = null

  validation {
    condition     = can(regex("^[\\w+=,.@-]{1,64}$", coalesce(var.fargate_iam_role_name, "unset")))
    error_message = "fargate_iam_role_name has up to 64 letters, digits and characters of +=,.@_-."
  }
}

variable "controller_image" {
  description = "The controller's image."
  type        = string
  default     = "ghcr.io/karp/karp:0.1.0"
  nullable    = false
}

variable "controller_replicas" {
  description = "Replicas of the controller; one leads, the others stand by."
  type        = number
  default     = 2
  nullable    = false

  validation {
    condition     = var.controller_replicas >= 1 && floor(var.controller_replicas) == var.controller_replicas
    error_message = "controller_replicas is a whole number of at least 1."
  }
}

variable "feature_gates" {
  description = "Feature gates, by Karpenter's names. When left out, ReservedCapacity is on, and CapacityBuffer, NodeOverlay, NodeRepair, SpotToSpotConsolidation and StaticCapacity are off."
  type        = map(bool)
  default     = {}
  nullable    = false
}

variable "controller_settings" {
  description = "How the controller works: the settings of karp_controller, each with the provider's default."
  type = object({
    ami_refresh_interval                = optional(string)
    batch_idle_duration                 = optional(string)
    batch_max_duration                  = optional(string)
    cluster_ca_bundle                   = optional(string)
    consolidation_floor                 = optional(string)
    disable_cluster_state_observability = optional(bool)
    disable_dry_run                     = optional(bool)
    eks_control_plane                   = optional(bool)
    ignore_dra_requests                 = optional(bool)
    isolated_vpc                        = optional(bool)
    max_pod_share                       = optional(string)
    min_values_policy                   = optional(string)
    preference_policy                   = optional(string)
    price_tolerance                     = optional(string)
    reserved_enis                       = optional(number)
    subnet_refresh_interval             = optional(string)
    vm_memory_overhead_percent          = optional(number)
  })
  default = null
}

variable "controller" {
  description = "The rest of karp_controller, each with the provider's default: log level, resources, placement, metadata and more."
  type = object({
    affinity = optional(object({
      node_affinity = optional(object({
        preferred_during_scheduling_ignored_during_execution = optional(list(object({
          preference = object({
            match_expressions = optional(list(object({ key = string, operator = string, values = optional(list(string)) })))
            match_fields      = optional(list(object({ key = string, operator = string, values = optional(list(string)) })))
          })
          weight = number
        })))
        required_during_scheduling_ignored_during_execution = optional(object({
          node_selector_terms = list(object({
            match_expressions = optional(list(object({ key = string, operator = string, values = optional(list(string)) })))
            match_fields      = optional(list(object({ key = string, operator = string, values = optional(list(string)) })))
          }))
        }))
      }))
      # As affinities of pods are typed in karp_controller, which checks them.
      pod_affinity      = optional(any)
      pod_anti_affinity = optional(any)
    }))
    annotations                 = optional(map(string))
    cluster_endpoint            = optional(string)
    create_namespace            = optional(bool)
    extra_args                  = optional(list(string))
    extra_env                   = optional(map(string))
    force                       = optional(bool)
    force_conflicts             = optional(bool)
    health_probe_port           = optional(number)
    host_network                = optional(bool)
    image_pull_policy           = optional(string)
    image_pull_secrets          = optional(set(string))
    labels                      = optional(map(string))
    log_level                   = optional(string)
    metrics_port                = optional(number)
    more_container_json         = optional(string)
    more_pod_spec_json          = optional(string)
    node_selector               = optional(map(string))
    pod_annotations             = optional(map(string))
    pod_disruption_budget       = optional(object({ max_unavailable = optional(string), min_available = optional(string) }))
    pod_labels                  = optional(map(string))
    priority_class_name         = optional(string)
    resources                   = optional(object({ limits = optional(map(string)), requests = optional(map(string)) }))
    revision_history_limit      = optional(number)
    service_account_annotations = optional(map(string))
    service_annotations         = optional(map(string))
    service_monitor = optional(object({
      interval           = optional(string)
      labels             = optional(map(string))
      more_endpoint_json = optional(string)
      sample_limit       = optional(number)
      metric_relabelings = optional(list(object({
        action        = optional(string)
        modulus       = optional(number)
        regex         = optional(string)
        replacement   = optional(string)
        separator     = optional(string)
        source_labels = optional(list(string))
        target_label  = optional(string)
      })))
      relabelings = optional(list(object({
        action        = optional(string)
        modulus       = optional(number)
        regex         = optional(string)
        replacement   = optional(string)
        separator     = optional(string)
        source_labels = optional(list(string))
        target_label  = optional(string)
      })))
    }))
    timeouts = optional(object({
      create = optional(string)
      read   = optional(string)
      update = optional(string)
      delete = optional(string)
    }))
    tolerations = optional(list(object({
      effect             = optional(string)
      key                = optional(string)
      operator           = optional(string)
      toleration_seconds = optional(number)
      value              = optional(string)
    })))
    topology_spread_constraints = optional(list(object({
      label_selector = optional(object({
        match_expressions = optional(list(object({ key = string, operator = string, values = optional(list(string)) })))
        match_labels      = optional(map(string))
      }))
      match_label_keys     = optional(list(string))
      max_skew             = number
      min_domains          = optional(number)
      node_affinity_policy = optional(string)
      node_taints_policy   = optional(string)
      topology_key         = string
      when_unsatisfiable   = string
    })))
    update_strategy = optional(object({ max_surge = optional(string), max_unavailable = optional(string) }))
    wait            = optional(bool)
  })
  default  = {}
  nullable = false
}

variable "keep_crds_on_destroy" {
  description = "Leave the custom resource definitions at destroy. With false they go too, which is refused while objects of theirs are left."
  type        = bool
  default     = false
  nullable    = false
}

variable "adopt_crds" {
  description = "Take over the custom resource definitions that Helm or another field manager keeps, instead of an error that names it; the provider block's adopt_existing when null."
  type        = bool
  default     = null
}

variable "allow_crd_downgrade" {
  description = "Apply this version's custom resource definitions even where the cluster has newer ones: what objects say in fields that go is lost when they are next written."
  type        = bool
  default     = null
}

variable "teardown" {
  description = "How destroy clears up: how long nodes may drain, whether NodePools made elsewhere go too, what is ended in AWS; dry_run only tells."
  type = object({
    drain_timeout = optional(string)
    dry_run       = optional(bool)
    force         = optional(bool)
    sweep         = optional(set(string))
    timeouts = optional(object({
      create = optional(string)
      read   = optional(string)
      update = optional(string)
      delete = optional(string)
    }))
  })
  default  = {}
  nullable = false
}
