tofu import karp_fargate_profile.this 'prod:Karp-prod'

# in another region than the provider block's
tofu import karp_fargate_profile.this 'prod:Karp-prod@us-west-2'
