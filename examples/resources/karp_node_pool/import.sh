tofu import karp_node_pool.default 'default'
