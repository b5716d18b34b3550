tofu import karp_fargate_profile.this 'prod:karpenter'
