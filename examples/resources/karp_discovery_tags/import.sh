tofu import karp_discovery_tags.this 'karpenter.sh/discovery,prod,subnet-0123456789abcdef0+sg-0123456789abcdef0'

# in another region than the provider block's
tofu import karp_discovery_tags.this 'karpenter.sh/discovery,prod,subnet-0123456789abcdef0+sg-0123456789abcdef0@us-west-2'
