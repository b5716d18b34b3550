tofu import karp_access_entry.this 'prod:arn:aws:iam::111122223333:role/KarpNodeRole-prod'
