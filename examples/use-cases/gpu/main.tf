# GPU nodes beside ordinary ones: launched for pods that ask for a GPU, out of bounds for all others, and never more than you allow.

terraform {
  required_providers {
    karp = {
      source  = "karp/karp"
      version = "~> 0.1"
    }
  }
}

variable "cluster_name" {
  description = "The EKS cluster that karp scales."
  type        = string
}

variable "region" {
  description = "The region of the cluster."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets: of the nodes, and of the Fargate profile that runs the controller."
  type        = set(string)
}

variable "security_group_ids" {
  description = "Security groups of the nodes."
  type        = set(string)
}

variable "gpu_limit" {
  description = "The most GPUs that may run at the same time."
  type        = string
  default     = "8"
}

provider "karp" {
  region       = var.region
  cluster_name = var.cluster_name
}

module "karp" {
  source = "../../../terraform/karp"

  cluster_name       = var.cluster_name
  subnet_ids         = var.subnet_ids
  security_group_ids = var.security_group_ids

  node_classes = {
    default = {}

    # The alias leads to the image with NVIDIA's driver for types that have such a GPU. Its containers are large.
    gpu = {
      block_device_mappings = [
        { device_name = "/dev/xvda", ebs = { volume_size = "200Gi", volume_type = "gp3", throughput = 500, encrypted = true } },
      ]
      instance_store_policy = "RAID0"
    }
  }

  node_pools = {
    default = {}

    gpu = {
      node_class     = "gpu"
      capacity_types = ["spot", "on-demand"]
      requirements = [
        { key = "karpenter.k8s.aws/instance-gpu-manufacturer", operator = "In", values = ["nvidia"] },
        { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["g"] },
        { key = "karpenter.k8s.aws/instance-gpu-count", operator = "Lt", values = ["5"] },
      ]
      # Only pods that tolerate this come here; the device plugin's DaemonSet does, too.
      taints = [{ key = "nvidia.com/gpu", effect = "NoSchedule" }]
      # An idle GPU is dear; one at work is left to finish.
      consolidation_policy = "WhenEmpty"
      consolidate_after    = "1m"
      limits               = { "nvidia.com/gpu" = var.gpu_limit }
    }
  }
}

# The types that the pool may launch, as the built-in table knows them: cheapest first, asked of nobody.
data "karp_instance_types" "gpu" {
  requirements = [
    { key = "karpenter.k8s.aws/instance-gpu-manufacturer", operator = "In", values = ["nvidia"] },
    { key = "karpenter.k8s.aws/instance-category", operator = "In", values = ["g"] },
    { key = "karpenter.k8s.aws/instance-gpu-count", operator = "Lt", values = ["5"] },
    { key = "kubernetes.io/arch", operator = "In", values = ["amd64"] },
  ]
}

output "cheapest_gpu_types" {
  value = slice(data.karp_instance_types.gpu.names, 0, 3)
}
