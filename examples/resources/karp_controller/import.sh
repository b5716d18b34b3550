tofu import karp_controller.this 'karpenter/karpenter'
