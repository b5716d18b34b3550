tofu import karp_spot_service_linked_role.this 'spot.amazonaws.com'
