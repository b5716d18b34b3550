"""IAM's names where moto does not have AWS's own."""

from moto.iam.models import SERVICE_NAME_CONVERSION


def install(_world):
    """The service-linked role of spot.amazonaws.com is called after EC2 Spot; moto's would be after the service."""
    SERVICE_NAME_CONVERSION["spot"] = "EC2Spot"
