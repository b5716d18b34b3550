"""On-Demand Capacity Reservations and capacity blocks: what `POST /_karp/reservations` says there is, counted as instances come and go."""

import datetime

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

from . import instances
from .call import Refused
from .world import ACCOUNT


def install(world):
    def describe_capacity_reservations(self):
        params = self._get_params()
        ids = params.get("CapacityReservationIds") or []
        if unknown := [one for one in ids if one not in world.reservations]:
            raise EC2ClientError("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{unknown[0]}' does not exist")
        filters = {f["Name"]: f.get("Values") or [] for f in params.get("Filters") or []}
        found = [answered(world, one) for key, one in world.reservations.items() if not ids or key in ids]
        return ActionResult({"CapacityReservations": [one for one in found if matches(one, filters)]})

    EC2Response.describe_capacity_reservations = describe_capacity_reservations


def replace(world, wanted):
    """Sets what there is. An instance whose reservation is gone runs on, on demand."""
    world.reservations = {one["id"]: dict(one) for one in wanted or []}
    for instance in world.ec2.all_instances():
        if getattr(instance, "capacity_reservation_id", None) not in world.reservations:
            instance.capacity_reservation_id = None
    return listed(world)


def listed(world):
    return [answered(world, one) for one in world.reservations.values()]


def free(world, one):
    def takes(instance):
        return getattr(instance, "capacity_reservation_id", None) == one["id"] and instance._state.name not in instances.GONE

    return max(0, int(one.get("count", 1)) - sum(map(takes, world.ec2.all_instances())))


def answered(world, one):
    """The reservation as EC2 describes it."""
    ends = one.get("end")
    return {
        "CapacityReservationId": one["id"], "OwnerId": one.get("owner", ACCOUNT), "InstanceType": one["instance_type"],
        "AvailabilityZone": one["zone"], "InstancePlatform": "Linux/UNIX", "Tenancy": one.get("tenancy", "default"),
        "TotalInstanceCount": int(one.get("count", 1)), "AvailableInstanceCount": free(world, one), "State": one.get("state", "active"),
        "InstanceMatchCriteria": one.get("match", "targeted"), "ReservationType": one.get("type", "default"),
        "Interruptible": bool(one.get("interruptible", False)), "EndDateType": "limited" if ends else "unlimited",
        "Tags": [{"Key": k, "Value": v} for k, v in (one.get("tags") or {}).items()],
        **({"EndDate": datetime.datetime.fromisoformat(ends.replace("Z", "+00:00"))} if ends else {}),
    }


def matches(one, filters):
    tags = {t["Key"]: t["Value"] for t in one["Tags"]}
    fields = {"state": "State", "owner-id": "OwnerId", "instance-match-criteria": "InstanceMatchCriteria",
              "instance-type": "InstanceType", "availability-zone": "AvailabilityZone"}
    for name, values in filters.items():
        if name == "tag-key":
            held = any(v in tags for v in values)
        elif name.startswith("tag:"):
            held = tags.get(name.removeprefix("tag:")) in values
        else:
            held = one[fields[name]] in values
        if not held:
            return False
    return True


def market_of(one):
    """The market that a launch must name, and the lifecycle of what it launches; none for plain reservations."""
    if one.get("type") == "capacity-block":
        return "capacity-block"
    return "interruptible-capacity-reservation" if one.get("interruptible") else None


TARGETS = {"capacity-block": "capacity-block", "interruptible-capacity-reservation": "reserved-capacity"}  # CreateFleet's names of markets


def check_target(one, capacity_type):
    """Refuses a fleet that asks for another kind of capacity than the reservation that its template names has, if it names one."""
    target = TARGETS.get(one and market_of(one), "on-demand")
    if target != capacity_type and (one or capacity_type in TARGETS.values()):
        named = f"'{one['id']}' needs" if one else "no reservation is named that has"
        raise Refused("InvalidParameterValue", f"DefaultTargetCapacityType {capacity_type}: {named} {target if one else capacity_type}.")


def taken(world, data, kind, zone, capacity_type):
    """The reservation that a launch from this template takes, if any."""
    asked = data.get("CapacityReservationSpecification") or {}
    target = (asked.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    if target is None:
        return open_one(world, kind, zone, tenancy_of(data)) if asked.get("CapacityReservationPreference") != "none" and capacity_type == "on-demand" else None
    one = world.reservations.get(target)
    if one is None:
        raise Refused("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{target}' does not exist")
    if (one["instance_type"], one["zone"]) != (kind, zone):
        raise Refused("InvalidParameterValue", f"The capacity reservation '{target}' is for {one['instance_type']} in {one['zone']}.")
    market = (data.get("InstanceMarketOptions") or {}).get("MarketType")
    if market != market_of(one):
        raise Refused("InvalidParameterValue", f"The capacity reservation '{target}' needs the market type {market_of(one)}, not {market}.")
    if tenancy_of(data) != one.get("tenancy", "default"):
        raise Refused("InvalidParameterValue", f"The capacity reservation '{target}' is for tenancy {one.get('tenancy', 'default')}, not {tenancy_of(data)}.")
    if not free(world, one):
        raise Refused("ReservationCapacityExceeded", f"The requested reservation does not have sufficient compatible and available capacity for this request: {target}")
    return one


def hold(instance, one, data):
    """Notes on a new instance the reservation that it takes, and what its template says of reservations."""
    asked = data.get("CapacityReservationSpecification") or {}
    instance.capacity_reservation_specification = {"CapacityReservationPreference": asked.get("CapacityReservationPreference", "open"),
                                                   **{k: v for k, v in asked.items() if k == "CapacityReservationTarget"}}
    instance.capacity_reservation_id = one and one["id"]
    if market := one and market_of(one):
        instance.lifecycle = market


def tenancy_of(data):
    return (data.get("Placement") or {}).get("Tenancy") or "default"


def open_one(world, kind, zone, tenancy):
    """The open reservation that an instance falls into which says nothing of reservations."""
    def fits(one):
        place = (one["instance_type"], one["zone"], one.get("tenancy", "default"))
        return one.get("match") == "open" and place == (kind, zone, tenancy) and free(world, one)

    return next(filter(fits, world.reservations.values()), None)
