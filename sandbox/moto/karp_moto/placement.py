"""Placement groups, which moto lacks: what `POST /_karp/placement-groups` says there is, and instances that are placed into them."""

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

from .call import Refused


def install(world):
    run = EC2Response.run_instances

    def describe_placement_groups(self):
        params, groups = self._get_params(), list(world.placement_groups.values())
        for key, field in (("GroupIds", "id"), ("GroupNames", "name")):
            for wanted in params.get(key) or []:
                if wanted not in [one[field] for one in groups]:
                    raise EC2ClientError("InvalidPlacementGroup.Unknown", unknown(wanted))
        asked = [one for one in groups if one["id"] in (params.get("GroupIds") or [one["id"]]) and one["name"] in (params.get("GroupNames") or [one["name"]])]
        return ActionResult({"PlacementGroups": [answered(one) for one in asked]})

    def run_instances(self):
        asked = self._get_param("Placement.GroupId")
        if asked and asked not in world.placement_groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", unknown(asked))
        return run(self)

    EC2Response.describe_placement_groups, EC2Response.run_instances = describe_placement_groups, run_instances


def replace(world, wanted):
    """Sets which groups there are. Instances of one that goes stay as they are."""
    world.placement_groups = {one["id"]: {"name": one["id"], "strategy": "cluster", "state": "available", **one} for one in wanted or []}
    return list(world.placement_groups.values())


def unknown(name):
    return f"The Placement Group '{name}' is unknown."


def answered(one):
    partitions = {"PartitionCount": int(one.get("partitions", 7))} if one["strategy"] == "partition" else {}
    return {"GroupId": one["id"], "GroupName": one["name"], "Strategy": one["strategy"], "State": one["state"], **partitions}


def taken(world, data):
    """The group that a launch names, if any; it must be there."""
    asked = (data.get("Placement") or {}).get("GroupId")
    if asked and asked not in world.placement_groups:
        raise Refused("InvalidPlacementGroup.Unknown", unknown(asked))
    return world.placement_groups.get(asked)


def put(world, instance, data):
    """Notes the group on a new instance, and its partition: the one that is asked for, else the first."""
    if one := taken(world, data):
        instance.placement.group_id, instance.placement.group_name = one["id"], one["name"]
        if one["strategy"] == "partition":
            instance.placement.partition_number = int(data["Placement"].get("PartitionNumber") or 1)
