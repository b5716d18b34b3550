tofu import karp_pod_identity_association.this 'prod,a-0123456789abcdef0'

# in another region than the provider block's
tofu import karp_pod_identity_association.this 'prod,a-0123456789abcdef0@us-west-2'
