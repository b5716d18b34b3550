"""IAM's names where moto does not have AWS's own, and the audiences of identity providers, which moto makes and never changes."""

from moto.core.responses import EmptyResult
from moto.iam.models import SERVICE_NAME_CONVERSION
from moto.iam.responses import IamResponse


def install(_world):
    """The service-linked role of spot.amazonaws.com is called after EC2 Spot; moto's would be after the service."""
    SERVICE_NAME_CONVERSION["spot"] = "EC2Spot"
    IamResponse.add_client_id_to_open_id_connect_provider = changes_audiences(lambda ids, one: [*ids, one])
    IamResponse.remove_client_id_from_open_id_connect_provider = changes_audiences(lambda ids, one: ids)


def changes_audiences(then):
    """An action on the audiences but the named one; to add what is there, or to take out what is not, is no error."""
    def act(self):
        provider = self.backend.get_open_id_connect_provider(self._get_param("OpenIDConnectProviderArn"))
        named = self._get_param("ClientID")
        provider.client_id_list = then([one for one in provider.client_id_list if one != named], named)
        return EmptyResult()

    return act
