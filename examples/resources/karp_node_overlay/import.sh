tofu import karp_node_overlay.savings_plan 'savings-plan'
