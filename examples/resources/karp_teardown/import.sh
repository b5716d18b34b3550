tofu import karp_teardown.this 'prod'
