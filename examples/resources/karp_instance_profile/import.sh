tofu import karp_instance_profile.this 'KarpNodeInstanceProfile-prod'
