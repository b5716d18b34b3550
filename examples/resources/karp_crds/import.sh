tofu import karp_crds.this 'crds'
