tofu import karp_pod_identity_association.this 'prod,a-0123456789abcdef0'
