"""What exists beyond AWS's own defaults: `GET /_karp/inventory`. After `tofu destroy` it must equal what it was at the start."""

from moto.events.models import events_backends
from moto.sqs.models import sqs_backends

from .instances import GONE
from .world import ACCOUNT

DISCOVERY = "karpenter.sh/discovery"


def read(world):
    ec2, iam = world.ec2, world.iam
    live = [i for i in ec2.all_instances() if i._state.name not in GONE]
    return {
        "instances": sorted(i.id for i in live),
        "volumes": sorted(ec2.volumes),
        "network_interfaces": sorted(ec2.enis),
        "launch_templates": sorted(t.name for t in ec2.launch_templates.values()),
        "roles": sorted(r.name for r in iam.get_roles()),
        "policies": sorted(p.name for p in iam.managed_policies.values() if ":aws:policy" not in p.arn),
        "instance_profiles": sorted(p.name for p in iam.instance_profiles.values()),
        "oidc_providers": sorted(iam.open_id_providers),
        "queues": sorted(sqs_backends[ACCOUNT][world.region].queues),
        "rules": sorted(rule.name for bus in events_backends[ACCOUNT][world.region].event_buses.values() for rule in bus.rules.values()),
        "fargate_profiles": sorted(f"{c.name}/{p}" for c in world.eks.clusters.values() for p in c.fargate_profiles),
        "access_entries": sorted(f"{cluster}/{principal}" for cluster, principal in world.access_entries),
        "pod_identity_associations": sorted(world.pod_identities),
        "discovery_tags": sorted(f"{resource}={tags[DISCOVERY]}" for resource, tags in ec2.tags.items() if DISCOVERY in tags),
    }


def fargate_profiles(world):
    """The profiles that place pods now: active ones of the sandbox's cluster."""
    profiles = world.eks.clusters[world.cluster_name].fargate_profiles.values()
    return [{"name": p.fargate_profile_name, "selectors": p.selectors, "subnets": p.subnets, "pod_execution_role_arn": p.pod_execution_role_arn}
            for p in profiles if p.status == "ACTIVE"]
