"""What AWS asks before it lets a call pass: which action on which resource, in which circumstances. Nothing is refused for it here.

Each action has a rule, after AWS's service authorization reference. A thing that is still to be made goes by `KIND/*` with the tags of
the request; one that exists by its ARN with the tags that it has at this moment. What a call names and is not there has no tags and no
ARN: AWS refuses such a call for another reason, so nothing is asked. A call without a rule asks for itself on `*`, which no scoped
policy grants: new calls are never passed over.
"""

from .world import ACCOUNT, PARTITION

# The names that IAM has for kinds of EC2's ids.
KINDS = {"i": "instance", "vol": "volume", "eni": "network-interface", "lt": "launch-template", "fleet": "fleet", "sir": "spot-instances-request",
         "subnet": "subnet", "sg": "security-group", "ami": "image", "snap": "snapshot", "pg": "placement-group", "cr": "capacity-reservation"}
WITHOUT_ACCOUNT = {"image", "snapshot"}
NO_MATTER_OF_FLEETS = {"security-group", "snapshot"}  # RunInstances asks for these, CreateFleet does not
BATCHES = {"DeleteMessageBatch": "DeleteMessage", "SendMessageBatch": "SendMessage", "ChangeMessageVisibilityBatch": "ChangeMessageVisibility"}
PUBLIC_PARAMETERS = "/aws/service/"


def asked(world, call):
    """The requests that AWS judges for this call, none twice."""
    rule = RULES.get((call.service, call.action))
    if rule is None and call.service == "ec2" and call.action.startswith("Describe"):
        rule = describe
    found = rule(world, call) if rule else [request(f"{call.service}:{call.action}", "*")]
    unique = []
    for one in found:
        one["context"]["aws:RequestedRegion"] = [call.region]
        if one not in unique:
            unique.append(one)
    return unique


def request(action, resource, *contexts):
    return {"action": action, "resource": resource, "context": {k: v for context in contexts for k, v in context.items()}}


def tagged(kind, tags):
    """Tags as context keys: `RequestTag` of what is asked for, `ResourceTag` of what is there."""
    return {f"aws:{kind}/{key}": [value] for key, value in tags.items()}


def requested(tags):
    return {**tagged("RequestTag", tags), **({"aws:TagKeys": sorted(tags)} if tags else {})}


# --- EC2 ---------------------------------------------------------------------------------------------------------------------------------


def nested(params):
    """The query protocol's `A.1.B=c` as lists and dictionaries."""
    tree = {}
    for key, value in params.items():
        node, steps = tree, key.split(".")
        for step in steps[:-1]:
            node = node.setdefault(step, {})
        node[steps[-1]] = value
    return listed(tree)


def listed(node):
    if not isinstance(node, dict):
        return node
    if node and all(step.isdigit() for step in node):
        return [listed(node[step]) for step in sorted(node, key=int)]
    return {step: listed(inner) for step, inner in node.items()}


def tags_of(specifications):
    """Tags by kind, from calls (`Tag`) and from launch templates (`Tags`)."""
    found = {}
    for one in specifications or []:
        pairs = one.get("Tag") or one.get("Tags") or []
        found.setdefault(one.get("ResourceType"), {}).update({pair["Key"]: pair.get("Value") or "" for pair in pairs})
    return found


def arn(world, kind, name):
    return f"arn:{PARTITION}:ec2:{world.region}:{'' if kind in WITHOUT_ACCOUNT else ACCOUNT}:{kind}/{name}"


def kind_of(identity):
    return KINDS.get(identity.partition("-")[0])


def existing(world, action, identity, *contexts):
    """The request on a thing that is there."""
    kind = kind_of(identity)
    return request(action, arn(world, kind, identity), tagged("ResourceTag", world.ec2.tags.get(identity) or {}), *contexts)


def is_there(world, identity):
    kind, ec2 = kind_of(identity), world.ec2
    if kind == "placement-group":
        return identity in world.placement_groups
    if kind == "instance":
        return any(i.id == identity for i in ec2.all_instances())
    if kind == "subnet":
        return any(identity in zone for zone in ec2.subnets.values())
    if kind == "security-group":
        return ec2.get_security_group_from_id(identity) is not None
    if kind == "capacity-reservation":
        return identity in world.reservations
    kept = {"volume": "volumes", "network-interface": "enis", "launch-template": "launch_templates", "fleet": "fleets",
            "image": "amis", "snapshot": "snapshots"}.get(kind)
    return kept is not None and identity in getattr(ec2, kept)


def made(world, action, kind, tags):
    return request(action, arn(world, kind, "*"), requested(tags))


def tagging(world, by, tags):
    """Tags that come with what is made are a right of their own."""
    return [request("ec2:CreateTags", arn(world, kind, "*"), requested(of), {"ec2:CreateAction": [by]}) for kind, of in tags.items() if of]


def describe(world, call):
    return [request(f"ec2:{call.action}", "*")]


def create_launch_template(world, call):
    tags = tags_of(nested(call.params).get("TagSpecification"))
    return [made(world, "ec2:CreateLaunchTemplate", "launch-template", tags.get("launch-template", {})), *tagging(world, "CreateLaunchTemplate", tags)]


def on_template(world, call):
    name = call.params.get("LaunchTemplateName")
    identity = call.params.get("LaunchTemplateId") or world.ec2.launch_template_name_to_ids.get(name)
    return [existing(world, f"ec2:{call.action}", identity)] if identity and is_there(world, identity) else []


def terminate_instances(world, call):
    return [existing(world, "ec2:TerminateInstances", one) for one in nested(call.params).get("InstanceId", []) if is_there(world, one)]


def create_tags(world, call):
    params = nested(call.params)
    tags = tags_of([{"ResourceType": None, "Tag": params.get("Tag")}])[None]
    return [existing(world, "ec2:CreateTags", one, requested(tags)) for one in params.get("ResourceId", []) if is_there(world, one)]


def create_fleet(world, call):
    """The fleet asks for what the call tags; then, for each template, EC2 runs instances with the caller's rights."""
    params = nested(call.params)
    tags = tags_of(params.get("TagSpecification"))
    spot = (params.get("TargetCapacitySpecification") or {}).get("DefaultTargetCapacityType") == "spot"
    found = [made(world, "ec2:CreateFleet", kind, tags.get(kind, {})) for kind in dict.fromkeys(["fleet", *tags])]
    found += tagging(world, "CreateFleet", tags)
    for config in params.get("LaunchTemplateConfigs") or []:
        named = config.get("LaunchTemplateSpecification") or {}
        identity = named.get("LaunchTemplateId") or world.ec2.launch_template_name_to_ids.get(named.get("LaunchTemplateName"))
        if not identity or not is_there(world, identity):
            continue
        data = world.ec2.launch_templates[identity].get_version(named.get("Version") or "$Default").data
        merged = tags_of(data.get("TagSpecifications"))
        for kind, of in tags.items():
            if kind != "fleet":
                merged.setdefault(kind, {}).update(of)
        subnets = {o["SubnetId"] for o in config.get("Overrides") or [] if o.get("SubnetId")}
        for action, passed_over in (("ec2:CreateFleet", NO_MATTER_OF_FLEETS), ("ec2:RunInstances", ())):
            taken = [identity, *used(world, data, subnets)]
            found += [existing(world, action, one) for one in taken if kind_of(one) not in passed_over]
        found += run(world, data, merged, spot)
    return found


def run_instances(world, call):
    params = nested(call.params)
    interfaces = params.get("NetworkInterface") or []
    data = {
        **params, "NetworkInterfaces": [{"Groups": one.get("SecurityGroupId")} for one in interfaces], "SecurityGroupIds": params.get("SecurityGroupId"),
        "BlockDeviceMappings": params.get("BlockDeviceMapping"),
    }
    subnets = {one.get("SubnetId") for one in [params, *interfaces]}
    spot = (params.get("InstanceMarketOptions") or {}).get("MarketType") == "spot"
    tags = tags_of(params.get("TagSpecification"))
    return [*(existing(world, "ec2:RunInstances", one) for one in used(world, data, subnets)), *run(world, data, tags, spot)]


def used(world, data, subnets):
    """What a launch takes as it is: image with its snapshots, network, placement group, reservation."""
    from .fleet import groups_of

    image = world.ec2.amis.get(data.get("ImageId"))
    snapshots = [(m.get("Ebs") or {}).get("SnapshotId") for m in data.get("BlockDeviceMappings") or []]
    snapshots.append(getattr(getattr(image, "ebs_snapshot", None), "id", None))
    reservation = ((data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    names = [image and image.id, *groups_of(data), *snapshots, reservation, *sorted(s for s in subnets if s)]
    return [one for one in [*names, (data.get("Placement") or {}).get("GroupId")] if one and is_there(world, one)]


def run(world, data, tags, spot):
    """The requests on what RunInstances makes, on its tags, and on the role that the instances get."""
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
    found = [made(world, "ec2:RunInstances", kind, tags.get(kind, {})) for kind in kinds]
    found += tagging(world, "RunInstances", {kind: tags.get(kind) for kind in kinds})
    profile = profile_named(world, (data.get("IamInstanceProfile") or {}).get("Name"))
    return found + [pass_role(role) for role in (profile.roles if profile else [])]


# --- IAM ---------------------------------------------------------------------------------------------------------------------------------


def pass_role(role):
    return request("iam:PassRole", role.arn, {"iam:PassedToService": ["ec2.amazonaws.com"]})


def profile_named(world, name):
    return next((p for p in world.iam.instance_profiles.values() if p.name == name), None)


def profile_arn(name):
    return f"arn:{PARTITION}:iam::{ACCOUNT}:instance-profile{name}"


def pairs(tags):
    return {tag["Key"]: tag.get("Value") or "" for tag in tags or []}


def asked_tags(call):
    return pairs((nested(call.params).get("Tags") or {}).get("member"))


def create_instance_profile(world, call):
    tags, resource = asked_tags(call), profile_arn(f"{call.params.get('Path', '/')}{call.params.get('InstanceProfileName')}")
    found = [request("iam:CreateInstanceProfile", resource, requested(tags))]
    if tags:  # a right of its own, for which the profile is taken to carry the tags already
        found.append(request("iam:TagInstanceProfile", resource, requested(tags), tagged("ResourceTag", tags)))
    return found


def on_instance_profile(world, call):
    name = call.params.get("InstanceProfileName")
    profile = profile_named(world, name)
    resource = profile.arn if profile else profile_arn(f"/{name}")
    found = [request(f"iam:{call.action}", resource, tagged("ResourceTag", pairs(profile.tags) if profile else {}), requested(asked_tags(call)))]
    if call.action == "AddRoleToInstanceProfile":
        found += [pass_role(role) for role in world.iam.get_roles() if role.name == call.params.get("RoleName")]
    return found


def list_instance_profiles(world, call):
    return [request("iam:ListInstanceProfiles", "*")]  # the reference knows no resource of it


# --- the other services ------------------------------------------------------------------------------------------------------------------


def on_queue(world, call):
    name = call.params.get("QueueName") or str(call.params.get("QueueUrl", "")).rpartition("/")[2]
    action = BATCHES.get(call.action, call.action)
    return [request(f"sqs:{action}", f"arn:{PARTITION}:sqs:{world.region}:{ACCOUNT}:{name}")]


def on_parameter(world, call):
    name = call.params.get("Name", "")
    account = "" if name.startswith(PUBLIC_PARAMETERS) else ACCOUNT
    return [request(f"ssm:{call.action}", f"arn:{PARTITION}:ssm:{world.region}:{account}:parameter/{name.lstrip('/')}")]


def on_cluster(world, call):
    return [request(f"eks:{call.action}", f"arn:{PARTITION}:eks:{world.region}:{ACCOUNT}:cluster/{call.params.get('name')}")]


def nothing(world, call):
    """Everybody may."""
    return []


RULES = {
    ("ec2", "CreateFleet"): create_fleet, ("ec2", "RunInstances"): run_instances, ("ec2", "CreateLaunchTemplate"): create_launch_template,
    ("ec2", "DeleteLaunchTemplate"): on_template, ("ec2", "TerminateInstances"): terminate_instances, ("ec2", "CreateTags"): create_tags,
    ("iam", "CreateInstanceProfile"): create_instance_profile, ("iam", "ListInstanceProfiles"): list_instance_profiles,
    **{("iam", action): on_instance_profile for action in (
        "GetInstanceProfile", "TagInstanceProfile", "AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile", "DeleteInstanceProfile")},
    **{("sqs", action): on_queue for action in ("GetQueueUrl", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "SendMessage", "GetQueueAttributes")},
    ("ssm", "GetParameter"): on_parameter, ("eks", "DescribeCluster"): on_cluster, ("sts", "GetCallerIdentity"): nothing,
    ("sts", "AssumeRoleWithWebIdentity"): nothing,
}
