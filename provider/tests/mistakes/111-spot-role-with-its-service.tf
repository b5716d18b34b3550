# expect: aws_service_name | An argument named "aws_service_name" is not expected here
resource "karp_spot_service_linked_role" "it" {
  aws_service_name = "spot.amazonaws.com"
}
