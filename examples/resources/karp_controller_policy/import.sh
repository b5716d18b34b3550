# By the name, or by the ARN of any of its policies.
tofu import karp_controller_policy.this 'KarpController-prod'
