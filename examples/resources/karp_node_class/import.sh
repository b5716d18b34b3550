tofu import karp_node_class.default 'default'
