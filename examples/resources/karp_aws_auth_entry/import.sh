tofu import karp_aws_auth_entry.nodes 'arn:aws:iam::111122223333:role/KarpNodeRole-prod'
