"""CreateFleet of type `instant`, as EC2 does it: by price, with `Errors`, client tokens and all that the launch template says.

moto's own takes the first override whatever it costs and drops security groups, profile, volumes and metadata options.
"""

import hashlib
import json
import secrets
from dataclasses import dataclass

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles, random_fleet_id

from . import instances, lag, placement, prices, reservations
from .call import Refused

MARKETS = {"capacity-block": "on-demand", "reserved-capacity": "on-demand"}  # what capacity of reservations is priced as
BY_PRIORITY = {"prioritized", "capacity-optimized-prioritized"}  # the others here mean: cheapest first (all pools are equally deep)


@dataclass
class Pool:
    """One override that may be launched: an instance type in a zone."""

    template: object
    specification: dict  # id and version of the launch template, as answered
    overrides: dict
    data: dict  # the template's data under the overrides
    zone: str
    price: float
    available: int  # instances that the pool still has
    reservation: dict = None  # the capacity reservation that its instances take


def install(world):
    """Replaces moto's CreateFleet. Client tokens are remembered for the life of the process."""
    answered = {}  # (region, token) -> (digest of the request, result)
    original = EC2Response.create_fleet

    def create_fleet(self):
        params = self._get_params()
        if params.get("Type") != "instant":
            return original(self)
        self.error_on_dryrun()
        token = params.get("ClientToken")
        digest = hashlib.sha256(json.dumps(params, sort_keys=True, default=str).encode()).hexdigest()
        if token and (self.region, token) in answered:
            known, result = answered[self.region, token]
            if known != digest:
                raise EC2ClientError("IdempotentParameterMismatch", f"The client token {token} was used with other parameters")
            return ActionResult(result)
        result = launch(world, self.ec2_backend, params)
        if token:
            answered[self.region, token] = (digest, result)
        return ActionResult(result)

    EC2Response.create_fleet = create_fleet
    EC2Response.delete_launch_template = delete_launch_template(EC2Response.delete_launch_template)


def delete_launch_template(original):
    """A missing name is an error with a code of its own; moto says MissingParameter."""

    def answer(self):
        name = self._get_param("LaunchTemplateName")
        if name and name not in self.ec2_backend.launch_template_name_to_ids:
            raise EC2ClientError("InvalidLaunchTemplateName.NotFoundException",
                                 f"The specified launch template, with template name {name}, does not exist.")
        return original(self)

    return answer


def launch(world, ec2, params):
    target = params["TargetCapacitySpecification"]
    capacity_type = target.get("DefaultTargetCapacityType") or "on-demand"
    options = params.get("SpotOptions" if capacity_type == "spot" else "OnDemandOptions") or {}
    strategy = (options.get("AllocationStrategy") or "lowest-price").replace("lowestPrice", "lowest-price")
    wanted = int(target["TotalTargetCapacity"])
    pools, errors = ([], []) if world.faults.is_silent(params) else candidates(world, ec2, params, capacity_type)
    rank = (lambda p: (float(p.overrides.get("Priority", "inf")), p.price)) if strategy in BY_PRIORITY else (lambda p: p.price)
    pools.sort(key=rank)
    plan = spread(pools, wanted) if strategy == "diversified" else fill(pools, wanted)
    if sum(count for _, count in plan) < int(options.get("MinTargetCapacity") or 0):
        plan = []
    if sum(count for _, count in plan) < wanted:
        errors += [no_capacity(pool, capacity_type) for pool in pools]
    fleet = record(ec2, params)
    tags = tags_of(params.get("TagSpecifications"))
    launched = []
    for pool, count in plan:
        made = [start(world, ec2, fleet, pool, capacity_type, tags, params.get("ClientToken")) for _ in range(count)]
        launched.append({"LaunchTemplateAndOverrides": named(pool), "Lifecycle": capacity_type,
                         "InstanceIds": [i.id for i in made], "InstanceType": pool.data["InstanceType"]})
    return {"FleetId": fleet.id, "Instances": launched, "Errors": errors}


def no_capacity(pool, capacity_type):
    """What EC2 says of a pool that had some of what was asked for, and no more."""
    return {"LaunchTemplateAndOverrides": named(pool), "Lifecycle": capacity_type, "ErrorCode": "InsufficientInstanceCapacity",
            "ErrorMessage": short_of(pool)}


def short_of(pool):
    return f"We currently do not have sufficient {pool.data['InstanceType']} capacity in the Availability Zone you requested ({pool.zone})."


def candidates(world, ec2, params, capacity_type):
    """The pools that can be launched, and an error for each that cannot."""
    pools, errors = [], []
    for config in params.get("LaunchTemplateConfigs") or []:
        asked = config["LaunchTemplateSpecification"]
        template = (ec2.get_launch_template(asked["LaunchTemplateId"]) if asked.get("LaunchTemplateId")
                    else ec2.get_launch_template_by_name(asked["LaunchTemplateName"]))
        version = template.get_version(asked.get("Version") or "$Default")
        specification = {"LaunchTemplateId": template.id, "Version": str(version.number)}
        for overrides in config.get("Overrides") or [{}]:
            pool = Pool(template, specification, dict(overrides), {**version.data, **overrides}, "", 0.0, 1_000_000)
            try:
                check(world, ec2, pool, capacity_type)
                pools.append(pool)
            except Refused as refusal:
                errors.append({"LaunchTemplateAndOverrides": named(pool), "Lifecycle": capacity_type,
                               "ErrorCode": refusal.code, "ErrorMessage": refusal.message})
    return pools, errors


def check(world, ec2, pool, capacity_type):
    """Fills in zone, price and depth of the pool, or says why it cannot be launched."""
    kind, image = pool.data.get("InstanceType"), ec2.amis.get(pool.data.get("ImageId"))
    if kind not in INSTANCE_TYPES:
        raise Refused("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    pool.zone = pool.data.get("AvailabilityZone") or f"{ec2.region_name}a"
    if subnet_id := pool.data.get("SubnetId"):
        subnet = next((zone[subnet_id] for zone in ec2.subnets.values() if subnet_id in zone), None)
        if subnet is None:
            raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
        pool.zone = subnet.availability_zone
    pool.overrides["AvailabilityZone"] = pool.zone
    if kind not in offered(ec2.region_name, pool.zone):
        raise Refused("Unsupported", f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({pool.zone}).")
    market = MARKETS.get(capacity_type, capacity_type)
    if not {capacity_type, market} & set(INSTANCE_TYPES[kind]["SupportedUsageClasses"]):
        raise Refused("Unsupported", f"The instance type {kind} does not support {capacity_type}.")
    if image is None:
        raise Refused("InvalidAMIID.NotFound", f"The image id '[{pool.data.get('ImageId')}]' does not exist")
    if image.architecture not in INSTANCE_TYPES[kind]["ProcessorInfo"]["SupportedArchitectures"]:
        raise Refused("InvalidParameterValue", f"The architecture of {kind} does not match the architecture '{image.architecture}' of the specified AMI.")
    if capacity_type != "spot" and "spot-instances-request" in tags_of(pool.data.get("TagSpecifications")):
        raise Refused("InvalidParameterValue", "You cannot specify tags for Spot instances requests if there are no Spot instances requests being created by the request.")
    for nic in pool.data.get("NetworkInterfaces") or []:
        if nic.get("Ipv6AddressCount") and nic.get("Ipv6PrefixCount"):
            raise Refused("InvalidParameterValue", "You can and can only specify one of ipv6-addresses or ipv6-addresses-count  ipv6-prefix and ipv6-prefix-count.")
    for group in groups_of(pool.data):
        if ec2.get_security_group_from_id(group) is None:
            raise Refused("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    lag.check_profile(world, profile_of(world, ec2, pool.data))
    placement.taken(world, pool.data)
    pool.price = prices.price(world, market, kind, pool.zone)
    if capacity_type == "spot" and pool.price > float(pool.overrides.get("MaxPrice") or "inf"):
        raise Refused("SpotMaxPriceTooLow", f"Your Spot request price of {pool.overrides['MaxPrice']} is lower than the minimum required Spot request fulfillment price of {pool.price:.6f}.")
    held = reservations.taken(world, pool.data, kind, pool.zone, market)
    reservations.check_target(held, capacity_type)
    if held:
        pool.reservation, pool.available = held, reservations.free(world, held)
    elif rule := world.faults.capacity_error(capacity_type=capacity_type, instance_type=kind, zone=pool.zone, subnet=subnet_id):
        pool.available = int(rule.get("available", 0))
        if pool.available <= 0:
            raise Refused(rule.get("code", "InsufficientInstanceCapacity"), rule.get("message", short_of(pool)))


def offered(region, zone, _known={}):
    if (region, zone) not in _known:
        rows = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
        _known[region, zone] = {row["InstanceType"] for row in rows if row["Location"] == zone}
    return _known[region, zone]


def fill(pools, wanted):
    plan = []
    for pool in pools:
        if wanted <= 0:
            break
        count = min(wanted, pool.available)
        plan.append((pool, count))
        wanted -= count
    return plan


def spread(pools, wanted):
    counts = [0] * len(pools)
    while wanted > 0 and any(n < p.available for n, p in zip(counts, pools)):
        for index, pool in enumerate(pools):
            if wanted > 0 and counts[index] < pool.available:
                counts[index] += 1
                wanted -= 1
    return [(pool, count) for pool, count in zip(pools, counts) if count]


def named(pool):
    return {"LaunchTemplateSpecification": pool.specification, "Overrides": pool.overrides}


def tags_of(specifications):
    found = {}
    for one in specifications or []:
        found.setdefault(one.get("ResourceType"), {}).update({t["Key"]: t.get("Value", "") for t in one.get("Tags") or []})
    return found


def groups_of(data):
    return data.get("SecurityGroupIds") or [g for nic in data.get("NetworkInterfaces") or [] for g in nic.get("Groups") or []]


def profile_of(world, ec2, data):
    """The instance profile that the template names, or None. It must exist and hold a role."""
    asked = data.get("IamInstanceProfile") or {}
    if not asked:
        return None
    try:
        profile = filter_iam_instance_profiles(ec2.account_id, partition=ec2.partition, iam_instance_profile_arn=asked.get("Arn"),
                                               iam_instance_profile_name=asked.get("Name"))
    except Exception as error:
        raise Refused("InvalidParameterValue", lag.unknown_profile(asked.get("Name") or asked.get("Arn"))) from error
    if not profile.roles:
        raise Refused("InvalidParameterValue", f"IAM Instance Profile \"{profile.arn}\" has no associated IAM Roles")
    return profile


def record(ec2, params):
    """A fleet for DescribeFleets; its instances are started by `start`, not by moto."""
    fleet = Fleet(ec2, random_fleet_id(), params.get("OnDemandOptions") or {}, params.get("SpotOptions") or {},
                  {**params["TargetCapacitySpecification"], "TotalTargetCapacity": 0}, [],
                  params.get("ExcessCapacityTerminationPolicy"), False, False, "instant", None, None, params.get("TagSpecifications") or [])
    fleet.target_capacity_specification = params["TargetCapacitySpecification"]
    fleet.launch_template_configs = params.get("LaunchTemplateConfigs") or []
    ec2.fleets[fleet.id] = fleet
    return fleet


def start(world, ec2, fleet, pool, capacity_type, tags, token):
    data, template_tags = pool.data, tags_of(pool.data.get("TagSpecifications"))
    own = {"aws:ec2:fleet-id": fleet.id, "aws:ec2launchtemplate:id": pool.specification["LaunchTemplateId"],
           "aws:ec2launchtemplate:version": pool.specification["Version"]}
    mappings = [m for m in data.get("BlockDeviceMappings") or [] if m.get("Ebs")]
    more = {"block_device_mappings": mappings} if mappings else {}
    reservation = ec2.run_instances(
        image_id=data["ImageId"], count=1, user_data=data.get("UserData"), security_group_names=[], instance_type=data["InstanceType"],
        is_instance_type_default=False, subnet_id=data.get("SubnetId"), placement=None if data.get("SubnetId") else pool.zone,
        region_name=ec2.region_name, key_name=data.get("KeyName"), security_group_ids=groups_of(data),
        metadata_options=data.get("MetadataOptions") or {}, lifecycle="spot" if capacity_type == "spot" else None, client_token=token,
        monitoring_state="enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled", ebs_optimized=bool(data.get("EbsOptimized")),
        tags={"instance": {**template_tags.get("instance", {}), **tags.get("instance", {}), **own},
              "volume": {**template_tags.get("volume", {}), **tags.get("volume", {})}}, **more)
    instance = reservation.instances[0]
    reservations.hold(instance, pool.reservation, data)
    placement.put(world, instance, data)
    if capacity_type == "spot":
        instance.spot_instance_request_id = "sir-" + secrets.token_hex(4)
    if profile := profile_of(world, ec2, data):
        ec2.associate_iam_instance_profile(instance.id, iam_instance_profile_arn=profile.arn)
    nic_tags = {**template_tags.get("network-interface", {}), **tags.get("network-interface", {})}
    for nic in instance.nics.values():
        nic.delete_on_termination = True
        nic.add_tags(nic_tags)
    fleet.on_demand_instances.append({"id": reservation.id, "instance": instance})
    instances.boot(world, instance)
    return instance
