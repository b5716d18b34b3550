tofu import karp_fargate_pod_execution_role.this 'KarpFargateRole-prod'
