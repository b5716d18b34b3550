# A VPC, an EKS cluster without a node group, and karp: everything for a new cluster in one apply.

locals {
  zones = coalesce(var.availability_zones, [for letter in ["a", "b", "c"] : "${var.region}${letter}"])

  # By these the load balancer controller and karp find what belongs to the cluster.
  shared    = { "kubernetes.io/cluster/${var.name}" = "shared" }
  discovery = { "karpenter.sh/discovery" = var.name }
}

# --- network ----------------------------------------------------------------------------------------------------------------------

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "~> 6.0"

  name = var.name
  cidr = var.vpc_cidr
  azs  = local.zones

  # Sixteenths for nodes and pods; load balancers and NAT need little.
  private_subnets = [for index, _ in local.zones : cidrsubnet(var.vpc_cidr, 4, index)]
  public_subnets  = [for index, _ in local.zones : cidrsubnet(var.vpc_cidr, 8, index + 240)]

  enable_nat_gateway = true
  single_nat_gateway = var.single_nat_gateway

  public_subnet_tags  = merge(local.shared, { "kubernetes.io/role/elb" = "1" })
  private_subnet_tags = merge(local.shared, local.discovery, { "kubernetes.io/role/internal-elb" = "1" })
}

# --- cluster ----------------------------------------------------------------------------------------------------------------------

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "~> 21.0"

  name               = var.name
  kubernetes_version = var.kubernetes_version

  vpc_id     = module.vpc.vpc_id
  subnet_ids = module.vpc.private_subnets

  endpoint_public_access       = true
  endpoint_public_access_cidrs = var.endpoint_public_access_cidrs

  # Whoever applies this may also make what karp makes inside the cluster.
  enable_cluster_creator_admin_permissions = true

  # karp makes the OIDC provider, for the issuer that EKS names; two owners would fight over its tags.
  enable_irsa = false

  # Cluster DNS runs on Fargate, as the controller does: an add-on that waits for nodes would hold up the apply that brings them.
  fargate_profiles = {
    cluster-dns = {
      selectors = [{ namespace = "kube-system", labels = { k8s-app = "kube-dns" } }]
    }
  }
  addons = {
    coredns    = { configuration_values = jsonencode({ computeType = "Fargate" }) }
    kube-proxy = {}
    vpc-cni    = { before_compute = true }
  }

  node_security_group_additional_rules = {
    ingress_self_all = {
      description = "All between nodes"
      protocol    = "-1"
      from_port   = 0
      to_port     = 0
      type        = "ingress"
      self        = true
    }
  }

  # Nodes carry the cluster's own group, too, and of all groups of a node only one may have the cluster's tag: load balancers ask for it.
  node_security_group_tags = merge(local.discovery, { "kubernetes.io/cluster/${var.name}" = null })
}

# --- nodes ------------------------------------------------------------------------------------------------------------------------

provider "karp" {
  region = var.region
  # Known at apply only, which is early enough.
  cluster_name = module.eks.cluster_name

  default_tags = { tags = var.tags }
}

module "karp" {
  source = "../karp"

  cluster_name = module.eks.cluster_name
  subnet_ids   = module.vpc.private_subnets
  discovery    = "tagged"

  node_classes = {
    default = {
      # The tagged group of nodes, and the cluster's own: by that one, nodes and pods on Fargate reach each other.
      security_group_selector_terms = [
        { tags = local.discovery },
        { id = module.eks.cluster_primary_security_group_id },
      ]
    }
  }

  node_pools = {
    default = { limits = { cpu = "200" } }
  }

  # Nodes need the routes and the cluster to the last: destroy ends them first.
  depends_on = [module.vpc, module.eks]
}
