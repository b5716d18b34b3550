output "node_pool_hash" {
  value = provider::karp::node_pool_hash({
    apiVersion = "karpenter.sh/v1"
    kind       = "NodePool"
    metadata   = { name = "default" }
    spec = {
      template = {
        spec = {
          nodeClassRef = { group = "karpenter.k8s.aws", kind = "EC2NodeClass", name = "default" }
          requirements = [{ key = "kubernetes.io/arch", operator = "In", values = ["amd64"] }]
        }
      }
    }
  })
}
