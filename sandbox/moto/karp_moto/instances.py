"""The life of an instance: pending, running, shutting-down, terminated, with the events that EC2 sends and an ENI that goes away."""

import base64
import json

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.events.models import events_backends

from . import prices
from .world import ACCOUNT

GONE = {"shutting-down", "terminated"}


def install(world):
    """`Instance.terminate` walks through shutting-down; the address of a gone instance is not used again, so node names are unique."""
    original = Instance.terminate

    def terminate(self):
        if self._state.name in GONE:
            return type(self._state)(self._state.name, self._state.code)
        before = original(self)
        self.ec2_backend.get_subnet(self.subnet_id)._unused_ips.clear()
        move(world, self, "shutting-down", 32)
        world.clock.after(world.settings.shutdown_seconds, lambda: move(world, self, "terminated", 48))
        return before

    Instance.terminate = terminate


def boot(world, instance):
    move(world, instance, "pending", 0)
    world.clock.after(world.settings.boot_seconds, lambda: instance._state.name == "pending" and move(world, instance, "running", 16))


def move(world, instance, name, code):
    instance._state.name, instance._state.code = name, code
    if world.settings.state_events:
        send(world, "EC2 Instance State-change Notification", {"instance-id": instance.id, "state": name}, instance)


def send(world, kind, detail, instance):
    """An event as EC2 sends it, on the default bus: rules carry it to their targets."""
    arn = f"arn:aws:ec2:{world.region}:{ACCOUNT}:instance/{instance.id}"
    events_backends[ACCOUNT][world.region].put_events(
        [{"Source": "aws.ec2", "DetailType": kind, "Detail": json.dumps(detail), "Resources": [arn]}])


def interrupt(world, instance_id, after_seconds):
    """Spot takes an instance back: the warning now, the end `after_seconds` later (EC2 gives 120)."""
    instance = world.ec2.get_instance(instance_id)
    send(world, "EC2 Spot Instance Interruption Warning", {"instance-id": instance.id, "instance-action": "terminate"}, instance)

    def reclaim():
        if instance._state.name not in GONE:
            world.ec2.terminate_instances([instance.id])
            instance.state_reason.code = "Server.SpotInstanceTermination"

    world.clock.after(after_seconds, reclaim)


def describe(world):
    """What the node bridge has to know about each instance that has user data, ended ones included."""
    return [one(world, i) for i in world.ec2.all_instances() if i.user_data is not None]


def states(world):
    """The state of each instance by id: cheap, for polling."""
    return {i.id: i._state.name for i in world.ec2.all_instances() if i.user_data is not None}


def one(world, instance):
    kind = INSTANCE_TYPES[instance.instance_type]
    network = kind["NetworkInfo"]
    card = next((c for c in network.get("NetworkCards") or [] if c["NetworkCardIndex"] == network.get("DefaultNetworkCardIndex", 0)), {})
    interfaces = card.get("MaximumNetworkInterfaces", network["MaximumNetworkInterfaces"])
    role_arn = role_of(world, instance)
    return {
        "id": instance.id, "state": instance._state.name, "zone": instance.placement.zone, "region": world.region,
        "instance_type": instance.instance_type, "image_id": instance.image_id, "image_name": image_name(world, instance),
        "private_ip": instance.private_ip, "private_dns_name": instance.private_dns_name, "architecture": instance.architecture,
        "lifecycle": instance.lifecycle or "on-demand", "tags": {t["key"]: t["value"] for t in instance.get_tags()},
        "launched_at": instance.launch_time.timestamp(), "user_data": user_data(instance),
        "vcpus": kind["VCpuInfo"]["DefaultVCpus"], "memory_mib": kind["MemoryInfo"]["SizeInMiB"],
        "max_pods": interfaces * (network["Ipv4AddressesPerInterface"] - 1) + 2,
        "gpus": sum(g["Count"] for g in (kind.get("GpuInfo") or {}).get("Gpus", []) if g["Manufacturer"] == "NVIDIA"),
        "root_volume_gib": root_volume(world, instance), "role_arn": role_arn, "may_join": may_join(world, role_arn),
        "price": prices.price(world, instance.lifecycle or "on-demand", instance.instance_type, instance.placement.zone),
    }


def user_data(instance):
    """The user data in base64, whichever way moto kept it."""
    data = instance.user_data
    return data if isinstance(data, str) else base64.b64encode(base64.b64decode(data.as_bytes())).decode()


def image_name(world, instance):
    image = world.ec2.amis.get(instance.image_id)
    return image.name if image else None


def root_volume(world, instance):
    sizes = [world.ec2.volumes[b.volume_id].size for b in instance.block_device_mapping.values() if b.volume_id in world.ec2.volumes]
    return int(max(sizes, default=8))


def role_of(world, instance):
    arn = (instance.iam_instance_profile or {}).get("Arn")
    profile = next((p for p in world.iam.instance_profiles.values() if p.arn == arn), None)
    return profile.roles[0].arn if profile and profile.roles else None


def may_join(world, role_arn):
    """Whether the cluster knows the node's role: an access entry of a node type, as EKS asks for."""
    entry = world.access_entries.get((world.cluster_name, role_arn))
    return entry is not None and entry["type"].startswith(("EC2", "HYBRID"))
