tofu import karp_node_role.this 'KarpNodeRole-prod'
