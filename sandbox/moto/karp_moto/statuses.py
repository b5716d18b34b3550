"""Status checks of instances and what EC2 plans with them: what `POST /_karp/statuses` says, and all others are well."""

import datetime

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response


def install(world):
    def describe_instance_status(self):
        params = self._get_params()
        ids = params.get("InstanceIds") or []
        filters = {f["Name"]: f.get("Values") or [] for f in params.get("Filters") or []}
        everything = str(params.get("IncludeAllInstances", "")).lower() == "true"
        known = {i.id: i for i in world.ec2.all_instances() if not world.lag.hides(i, bool(ids))}
        if unknown := [one for one in ids if one not in known]:
            raise EC2ClientError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
        asked = [i for i in known.values() if (not ids or i.id in ids) and (everything or i._state.name == "running")]
        found = [answered(i, world.statuses.get(i.id) or {}) for i in asked]
        return ActionResult({"InstanceStatuses": [one for one in found if matches(one, filters)]})

    EC2Response.describe_instance_status = describe_instance_status


def replace(world, wanted):
    """Sets which instances are not well."""
    world.statuses = {one["instance_id"]: dict(one) for one in wanted or []}
    return list(world.statuses.values())


def answered(instance, said):
    """An instance as DescribeInstanceStatus tells of it."""
    return {
        "InstanceId": instance.id, "AvailabilityZone": instance.placement.zone,
        "InstanceState": {"Code": instance._state.code, "Name": instance._state.name},
        "InstanceStatus": summary(said.get("instance")), "SystemStatus": summary(said.get("system")),
        "Events": [event(one) for one in said.get("events") or []],
    }


def summary(since):
    """A check that fails since then, or one that does not."""
    if since is None:
        return {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
    return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": moment(since)}]}


def event(one):
    before = one.get("not_before")
    return {"Code": one["code"], "Description": one.get("description", ""), "InstanceEventId": one.get("id", "instance-event-1"),
            **({"NotBefore": moment(before)} if before else {})}


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def matches(one, filters):
    fields = {"instance-status.status": [one["InstanceStatus"]["Status"]], "system-status.status": [one["SystemStatus"]["Status"]],
              "event.code": [event["Code"] for event in one["Events"]], "availability-zone": [one["AvailabilityZone"]],
              "instance-state-name": [one["InstanceState"]["Name"]]}
    return all(set(fields[name]) & set(values) for name, values in filters.items())
