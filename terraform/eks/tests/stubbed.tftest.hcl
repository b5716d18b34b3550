# Run on a copy of the root whose modules are the stubs beside this file: see sandbox/tests/use_cases/. It holds what the root tells them.

provider "karp" {
  region       = "eu-west-1"
  access_key   = "none"
  secret_key   = "none"
  offline_plan = true
}

variables {
  name   = "prod"
  region = "eu-west-1"
}

run "subnets_are_tagged_and_placed" {
  command = plan

  assert {
    condition = module.vpc.given.tags.private == tomap({
      "karpenter.sh/discovery"          = "prod"
      "kubernetes.io/cluster/prod"      = "shared"
      "kubernetes.io/role/internal-elb" = "1"
    })
    error_message = "Private subnets are found by karp and by internal load balancers."
  }

  assert {
    condition = module.vpc.given.tags.public == tomap({
      "kubernetes.io/cluster/prod" = "shared"
      "kubernetes.io/role/elb"     = "1"
    })
    error_message = "Public subnets are found by load balancers, and by karp never."
  }

  assert {
    condition = join(" ", concat(module.vpc.given.cidrs.private, module.vpc.given.cidrs.public)) == join(" ", [
      "10.0.0.0/20", "10.0.16.0/20", "10.0.32.0/20", "10.0.240.0/24", "10.0.241.0/24", "10.0.242.0/24",
    ])
    error_message = "Three zones by default, large subnets for nodes and small ones for load balancers."
  }

  assert {
    condition     = output.node_pool_names == { default = "default" }
    error_message = "There is a pool."
  }
}

run "a_range_too_small_for_its_subnets_is_refused" {
  command = plan

  variables {
    vpc_cidr = "10.0.0.0/20"
  }

  expect_failures = [var.vpc_cidr]
}

run "nodes_reach_each_other_and_their_group_is_found" {
  command = plan

  assert {
    condition = [for rule in module.eks.given.rules : rule if rule.self == true && rule.type == "ingress"] == [{
      description = "All between nodes", protocol = "-1", from_port = 0, to_port = 0, type = "ingress", self = true
    }]
    error_message = "All traffic between nodes is let in."
  }

  assert {
    condition     = module.eks.given.tags["karpenter.sh/discovery"] == "prod"
    error_message = "karp finds the nodes' group by its tag."
  }

  assert {
    condition     = module.eks.given.tags["kubernetes.io/cluster/prod"] == null
    error_message = "The cluster's own group is the only one with the cluster's tag."
  }
}

run "six_zones_fit_into_the_smallest_range" {
  command = plan

  variables {
    vpc_cidr           = "10.0.0.0/19"
    availability_zones = [for letter in ["a", "b", "c", "d", "e", "f"] : "eu-west-1${letter}"]
  }

  assert {
    condition     = length(module.vpc.given.cidrs.private) == 6 && module.vpc.given.cidrs.private[5] == "10.0.10.0/23"
    error_message = "The address plan has room for six zones."
  }

  assert {
    condition     = module.vpc.given.cidrs.public[5] == "10.0.30.160/27"
    error_message = "Public subnets have the addresses that load balancers want."
  }
}

run "one_zone_is_too_few" {
  command = plan

  variables {
    availability_zones = ["eu-west-1a"]
  }

  expect_failures = [var.availability_zones]
}
