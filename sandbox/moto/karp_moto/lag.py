"""EC2 that does not know yet: instances that Describe calls leave out, and instance profiles that launches refuse.

`POST /_karp/hide` says which instances are hidden: `[{"where": TEXT, "ids": [..], "young_seconds": N, "seconds": N, "lists_only": true}]`. With
`POST /_karp/settings {"instance_page": N}` DescribeInstances answers in pages of so many reservations.
"""

import time

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response
from moto.iam.models import IAMBackend

from .call import Refused


class Lag:
    def __init__(self):
        self.rules = []  # what /_karp/hide says, with `until`
        self.profiles = {}  # profile name -> when EC2 knows it with its role

    def hide(self, rules):
        now = time.monotonic()
        self.rules += [{**rule, "until": now + float(rule.get("seconds", "inf"))} for rule in rules]

    def reset(self):
        """Shows everything again."""
        self.rules = []

    def hides(self, instance, by_id):
        """Whether a Describe call does not tell of an instance; `by_id` calls name it."""
        return any(covers(rule, instance) and not (by_id and rule.get("lists_only")) for rule in self.rules)

    def is_known(self, profile):
        return time.monotonic() >= self.profiles.get(profile.name, 0)


def covers(rule, instance):
    named = not rule.get("ids") or instance.id in rule["ids"]
    tagged = not rule.get("where") or any(rule["where"] in str(tag["value"]) for tag in instance.get_tags())
    young = "young_seconds" not in rule or time.time() - instance.launch_time.timestamp() < float(rule["young_seconds"])
    return named and tagged and young and time.monotonic() < rule["until"]


def install(world):
    """Describe calls, and those that name an instance, know what EC2 is said to know by now."""
    lag, all_of, by_ids = world.lag, EC2Backend.describe_instances, EC2Backend.get_reservations_by_instance_ids
    describe, terminate, run, joined = EC2Response.describe_instances, EC2Response.terminate_instances, EC2Response.run_instances, IAMBackend.add_role_to_instance_profile

    def seen(reservations, by_id):
        for reservation in reservations:  # copies: their lists of instances are not
            reservation.instances = [one for one in reservation.instances if not lag.hides(one, by_id)]
        return [one for one in reservations if one.instances]

    def describe_instances(self, filters=None):
        return seen(all_of(self, filters), bool(filters and "instance-id" in filters))

    def get_reservations_by_instance_ids(self, instance_ids, filters=None):
        refuse_hidden(world, instance_ids)
        return seen(by_ids(self, instance_ids, filters), True)

    def describe_in_pages(self):
        size, filters = world.settings.instance_page, self._filters_from_querystring()
        if not size or self._get_param("InstanceIds", []):
            return describe(self)
        kind = "named-" if "instance-id" in filters else "listed-"
        order = {one.id: at for at, made in enumerate(self.ec2_backend.reservations.values()) for one in made.instances}
        after = order.get((self._get_param("NextToken") or "").removeprefix(kind), -1)
        left = [one for one in self.ec2_backend.describe_instances(filters=filters) if order[one.instances[-1].id] > after]
        token = kind + left[size - 1].instances[-1].id if len(left) > size else None
        return ActionResult({"Reservations": left[:size], "NextToken": token})

    def terminate_instances(self):
        refuse_hidden(world, self._get_param("InstanceIds", []))
        return terminate(self)

    def run_instances(self):
        name = self._get_param("IamInstanceProfile.Name")
        if any(profile.name == name and not lag.is_known(profile) for profile in world.iam.instance_profiles.values()):
            raise EC2ClientError("InvalidParameterValue", unknown_profile(name))
        return run(self)

    def add_role_to_instance_profile(self, profile_name, role_name):
        joined(self, profile_name, role_name)
        lag.profiles[profile_name] = time.monotonic() + world.settings.profile_seconds

    EC2Backend.describe_instances, EC2Backend.get_reservations_by_instance_ids = describe_instances, get_reservations_by_instance_ids
    EC2Response.describe_instances, EC2Response.terminate_instances, EC2Response.run_instances = describe_in_pages, terminate_instances, run_instances
    IAMBackend.add_role_to_instance_profile = add_role_to_instance_profile


def refuse_hidden(world, ids):
    if hidden := [one.id for one in world.ec2.all_instances() if one.id in ids and world.lag.hides(one, True)]:
        raise InvalidInstanceIdError(hidden)


def check_profile(world, profile):
    """Refuses a launch under a profile that EC2 does not know yet."""
    if profile and not world.lag.is_known(profile):
        raise Refused("InvalidParameterValue", unknown_profile(profile.name))


def unknown_profile(name):
    """EC2's words for a profile that it does not know, or not yet."""
    return f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
