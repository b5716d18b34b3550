# expect: kms_master_key_id | must be a key of your own
resource "karp_interruption_queue" "it" {
  kms_master_key_id = "alias/aws/sqs"
}
