tofu import karp_interruption_queue.this 'https://sqs.eu-west-1.amazonaws.com/111122223333/karp-prod'
