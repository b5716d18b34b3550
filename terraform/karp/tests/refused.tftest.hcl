# What the module refuses at plan, and by which variable it says so.

provider "karp" {
  region       = "eu-west-1"
  access_key   = "none"
  secret_key   = "none"
  offline_plan = true
}

variables {
  cluster_name       = "prod"
  subnet_ids         = ["subnet-0a"]
  security_group_ids = ["sg-0a"]
}

run "an_arn_for_a_name" {
  command = plan
  variables {
    cluster_name = "arn:aws:eks:eu-west-1:111122223333:cluster/prod"
  }
  expect_failures = [var.cluster_name]
}

run "no_subnets" {
  command = plan
  variables {
    subnet_ids = []
  }
  expect_failures = [var.subnet_ids]
}

run "no_subnets_on_fargate_though_tagged" {
  command = plan
  variables {
    subnet_ids = []
    discovery  = "tagged"
  }
  expect_failures = [var.subnet_ids]
}

run "tagged_subnets_and_nodes_of_others_need_no_ids" {
  command = plan
  variables {
    subnet_ids         = []
    security_group_ids = null
    discovery          = "tagged"
    controller_on      = "nodes"
  }
  assert {
    condition     = length(karp_discovery_tags.this) == 0
    error_message = "Tags are left to others."
  }
}

run "no_security_groups" {
  command = plan
  variables {
    security_group_ids = []
  }
  expect_failures = [var.security_group_ids]
}

run "pod_identity_on_fargate" {
  command = plan
  variables {
    controller_auth = "pod_identity"
  }
  expect_failures = [var.controller_auth]
}

run "no_oidc_provider" {
  command = plan
  variables {
    create_oidc_provider = false
  }
  expect_failures = [var.oidc_provider_arn]
}

run "no_node_role" {
  command = plan
  variables {
    create_node_iam_role = false
  }
  # The role's name is cut out of the ARN, which is missing, too.
  expect_failures = [var.node_iam_role_arn]
}

run "a_role_name_too_long" {
  command = plan
  variables {
    iam_role_name = "KarpControllerRole-a-cluster-name-that-is-longer-than-what-is-left-of-64"
  }
  expect_failures = [var.iam_role_name]
}

run "the_namespace_of_others_on_fargate" {
  command = plan
  variables {
    namespace = "kube-system"
  }
  expect_failures = [var.namespace]
}

run "unknown_words" {
  command = plan
  variables {
    discovery         = "auto"
    node_access       = "configmap"
    policy_mode       = "customer"
    instance_profiles = "nobody"
    controller_on     = "ec2"
    cluster_ip_family = "dual"
  }
  expect_failures = [
    var.discovery, var.node_access, var.policy_mode, var.instance_profiles, var.controller_on, var.cluster_ip_family,
  ]
}

run "a_class_whose_profile_nobody_makes" {
  command = plan
  variables {
    node_classes = { default = { role = "nodes" } }
  }
  expect_failures = [var.node_classes]
}

run "a_class_with_two_identities" {
  command = plan
  variables {
    instance_profiles = "controller"
    node_classes      = { default = { role = "nodes", instance_profile = "nodes" } }
  }
  expect_failures = [var.node_classes]
}

run "a_pool_without_its_class" {
  command = plan
  variables {
    node_pools = { gpu = { node_class = "gpu" } }
  }
  expect_failures = [var.node_pools]
}

run "a_pool_of_a_capacity_that_there_is_not" {
  command = plan
  variables {
    node_pools = { default = { capacity_types = ["SPOT"] } }
  }
  expect_failures = [var.node_pools]
}

run "a_pool_whose_name_is_none" {
  command = plan
  variables {
    node_pools = { Default = {} }
  }
  expect_failures = [var.node_pools]
}

run "half_a_controller" {
  command = plan
  variables {
    controller_replicas = 0
  }
  expect_failures = [var.controller_replicas]
}
