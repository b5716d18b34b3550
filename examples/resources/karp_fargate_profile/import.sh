tofu import karp_fargate_profile.this 'prod:karpenter'

# in another region than the provider block's
tofu import karp_fargate_profile.this 'prod:karpenter@us-west-2'
