tofu import karp_controller_role.this 'KarpControllerRole-prod'
