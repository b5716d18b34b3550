"""The images that the aliases mean, and the SSM parameters that name them, for each Kubernetes version that AWS publishes them for.

Ids are made from names, so that they are the same in every sandbox. moto's own 1,301 images are not loaded: none is for EKS.
"""

import datetime
import hashlib

from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ssm_backends

from .eks import VERSIONS
from .world import ACCOUNT

AL2023_RELEASES = ["20260915", "20261015", "20261110"]  # oldest first; the last one is recommended
BOTTLEROCKET_RELEASES = [("1.49.0", "20260915"), ("1.50.0", "20261015"), ("1.51.0", "20261110")]
VARIANTS = {"standard": ["x86_64", "arm64"], "nvidia": ["x86_64", "arm64"], "neuron": ["x86_64"]}
AL2_RELEASE, AL2_LAST = "20251120", "1.32"
AL2 = {"": ("node", "x86_64"), "-gpu": ("gpu-node", "x86_64"), "-arm64": ("arm64-node", "arm64")}
WINDOWS_DAY = "20261110"
WINDOWS = {"2019": "1.30", "2022": "1.30", "2025": "1.35"}  # with the first Kubernetes version
OWNER_WINDOWS = "801119661308"
OWNER_EKS, OWNER_BOTTLEROCKET = "602401143452", "092701018921"


def seed(world):
    for version in VERSIONS:
        for variant, architectures in VARIANTS.items():
            for architecture in architectures:
                al2023(world, version, variant, architecture)
        for variant in ("", "-nvidia"):
            for architecture in ("x86_64", "arm64"):
                bottlerocket(world, version, variant, architecture)
        if version <= AL2_LAST:
            for suffix, (kind, architecture) in AL2.items():
                al2(world, version, suffix, kind, architecture)
        for year, first in WINDOWS.items():
            if version >= first:
                windows(world, version, year)


def al2(world, version, suffix, kind, architecture):
    base = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2{suffix}"
    name = f"amazon-eks-{kind}-{version}-v{AL2_RELEASE}"
    image = add_image(world, name, architecture, AL2_RELEASE, OWNER_EKS)
    put(world, f"{base}/{name}/image_id", image)
    put(world, f"{base}/recommended/image_id", image)


def windows(world, version, year):
    name = f"Windows_Server-{year}-English-Core-EKS_Optimized-{version}"
    image = add_image(world, f"{name}-2026.11.10", "x86_64", WINDOWS_DAY, OWNER_WINDOWS)
    put(world, f"/aws/service/ami-windows-latest/{name}/image_id", image)


def al2023(world, version, variant, architecture):
    base = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{architecture}/{variant}"
    for release in AL2023_RELEASES:
        name = f"amazon-eks-node-al2023-{architecture}-{variant}-{version}-v{release}"
        image = add_image(world, name, architecture, release, OWNER_EKS)
        put(world, f"{base}/{name}/image_id", image)
    put(world, f"{base}/recommended/image_id", image)
    put(world, f"{base}/recommended/image_name", name)


def bottlerocket(world, version, variant, architecture):
    base = f"/aws/service/bottlerocket/aws-k8s-{version}{variant}/{architecture}"
    for release, day in BOTTLEROCKET_RELEASES:
        name = f"bottlerocket-aws-k8s-{version}{variant}-{architecture}-v{release}-00000000"
        image = add_image(world, name, architecture, day, OWNER_BOTTLEROCKET)
        put(world, f"{base}/{release}/image_id", image)
    put(world, f"{base}/latest/image_id", image)
    put(world, f"{base}/latest/image_version", release)


def replace_images(world, wanted):
    """Sets which images there are beside those of the aliases: `POST /_karp/images`."""
    for identifier in world.images:
        world.ec2.amis.pop(identifier, None)
    world.images = {one["id"]: dict(one) for one in wanted or []}
    for one in world.images.values():
        add_image(world, one["name"], one.get("architecture", "x86_64"), one.get("day", WINDOWS_DAY), one.get("owner", ACCOUNT), one["id"])
        image = world.ec2.amis[one["id"]]
        image.owner_alias = one.get("owner_alias")
        image.deprecation_time = one.get("deprecated_at")
        image.add_tags(one.get("tags") or {})
    return list(world.images.values())


def set_parameters(world, wanted):
    """Sets the values of parameters, AWS's own too: `POST /_karp/parameters`."""
    for name, value in wanted.items():
        put(world, name, value)
    return wanted


def add_image(world, name, architecture, day, owner, identifier=None):
    identifier = identifier or "ami-" + hashlib.sha256(f"{world.region}/{name}".encode()).hexdigest()[:17]
    created = datetime.datetime.strptime(day, "%Y%m%d").replace(tzinfo=datetime.timezone.utc)
    image = Ami(world.ec2, identifier, name=name, description=f"sandbox image {name}", owner_id=owner, owner_alias="amazon", public=True,
                virtualization_type="hvm", architecture=architecture, creation_date=created, root_device_type="ebs",
                root_device_name="/dev/xvda", hypervisor="xen", region_name=f"{world.region}a")
    world.ec2.amis[identifier] = image
    return identifier


def put(world, name, value):
    # The API refuses names under /aws/service, so the parameter goes straight into the backend.
    parameters = ssm_backends[ACCOUNT][world.region]._parameters
    parameters[name].append(Parameter(
        account_id=ACCOUNT, name=name, value=value, parameter_type="String", description=None, allowed_pattern=None, keyid=None,
        last_modified_date=datetime.datetime.now(datetime.timezone.utc).timestamp(), version=1, data_type="text"))
