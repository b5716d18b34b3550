tofu import karp_access_entry.this 'prod:arn:aws:iam::111122223333:role/KarpNodeRole-prod'

# in another region than the provider block's
tofu import karp_access_entry.this 'prod:arn:aws:iam::111122223333:role/KarpNodeRole-prod@us-west-2'
