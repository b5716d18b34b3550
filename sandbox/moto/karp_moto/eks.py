"""EKS: what moto lacks (access entries and policies, pod identity, versions, tags on these) and Fargate profiles that take time.

`answer` returns None for the calls that moto does well enough.
"""

import time
import uuid

from moto.eks.models import EKSBackend, eks_backends

from .call import AwsError, json_answer
from .world import ACCOUNT

VERSIONS = ["1.36", "1.35", "1.34", "1.33", "1.32", "1.31", "1.30"]
NODE_TYPES = {"EC2_LINUX", "EC2_WINDOWS", "EC2", "FARGATE_LINUX", "HYBRID_LINUX", "HYPERPOD_LINUX"}
BUSY = {"CREATING", "DELETING"}
OF_ENTRIES = {"CreateAccessEntry", "UpdateAccessEntry", "DeleteAccessEntry", "DescribeAccessEntry", "ListAccessEntries", "AssociateAccessPolicy",
              "DisassociateAccessPolicy", "ListAssociatedAccessPolicies"}


def install(world):
    create, delete = EKSBackend.create_fargate_profile, EKSBackend.delete_fargate_profile

    def create_fargate_profile(self, **params):
        profiles = self.describe_cluster(params["cluster_name"]).fargate_profiles
        refuse_second(profiles, params["fargate_profile_name"])
        profile = create(self, **params)
        profile.status = "CREATING"
        world.clock.after(world.settings.fargate_seconds, lambda: setattr(profile, "status", "ACTIVE"))
        return profile

    def delete_fargate_profile(self, cluster_name, fargate_profile_name):
        profile = self.describe_fargate_profile(cluster_name, fargate_profile_name)
        refuse_second(self.clusters[cluster_name].fargate_profiles, fargate_profile_name)
        if profile.status != "DELETING":
            profile.status = "DELETING"
            world.clock.after(world.settings.fargate_seconds, lambda: delete(self, cluster_name, fargate_profile_name))
        return profile

    EKSBackend.create_fargate_profile, EKSBackend.delete_fargate_profile = create_fargate_profile, delete_fargate_profile


def refuse_second(profiles, name):
    """EKS makes or deletes one Fargate profile of a cluster at a time."""
    busy = next((p for p in profiles.values() if p.status in BUSY and p.fargate_profile_name != name), None)
    if busy:
        raise AwsError("ResourceInUseException", f"Fargate profile {busy.fargate_profile_name} of this cluster is in status {busy.status}", 409)


def answer(world, call):
    own = ACTIONS.get(call.action)
    if own is None:
        return None
    params = {**call.params, "region": call.region or world.region}
    if "name" in params and params["name"] not in clusters_in(params["region"]):
        raise AwsError("ResourceNotFoundException", f"No cluster found for name: {params['name']}.", 404)
    if call.action in OF_ENTRIES and is_seeded(world, params) and world.settings.authentication_mode == "CONFIG_MAP":
        raise AwsError("InvalidRequestException",
                       "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this operation.")
    value = own(world, params)
    return None if value is None else json_answer(value)


def clusters_in(region):
    return eks_backends[ACCOUNT][region].clusters


def is_seeded(world, params):
    return (params["region"], params["name"]) == (world.region, world.cluster_name)


def describe_cluster(world, params):
    """moto answers; how the sandbox's cluster knows its callers is a setting."""
    if is_seeded(world, params):
        clusters_in(params["region"])[params["name"]].access_config = {"authenticationMode": world.settings.authentication_mode}


# --- access entries -----------------------------------------------------------------------------------------------------------------


def entry_of(world, params):
    entry = world.access_entries.get((params["name"], params["principal"]))
    if entry is None:
        raise AwsError("ResourceNotFoundException", f"The specified principalArn could not be found: {params['principal']}.", 404)
    return entry


def public(entry):
    return {k: v for k, v in entry.items() if k != "policies"}


def create_access_entry(world, params):
    cluster, principal, kind = params["name"], params.get("principalArn", ""), params.get("type") or "STANDARD"
    if (cluster, principal) in world.access_entries:
        raise AwsError("ResourceInUseException", "The specified access entry resource is already in use on this cluster.", 409)
    if ":role/" in principal and not any(r.arn == principal for r in world.iam.get_roles()):
        raise AwsError("InvalidParameterException", f"The specified principalArn is invalid: invalid principal: {principal}")
    if kind in NODE_TYPES and (params.get("kubernetesGroups") or params.get("username")):
        raise AwsError("InvalidRequestException", f"You can not specify kubernetesGroups or a username for access entries of type {kind}")
    return {"accessEntry": public(add_access_entry(world, cluster, principal, kind, params))}


def add_access_entry(world, cluster, principal, kind, params):
    now, short, region = time.time(), principal.rpartition("/")[2], params.get("region", world.region)
    groups, user = params.get("kubernetesGroups") or [], params.get("username") or principal
    if kind in NODE_TYPES:
        groups, user = ["system:nodes"], "system:node:{{EC2PrivateDNSName}}" if kind != "FARGATE_LINUX" else "system:node:{{SessionName}}"
    entry = {
        "clusterName": cluster, "principalArn": principal, "kubernetesGroups": groups, "username": user, "type": kind,
        "accessEntryArn": f"arn:aws:eks:{region}:{ACCOUNT}:access-entry/{cluster}/role/{ACCOUNT}/{short}/{uuid.uuid4()}",
        "createdAt": now, "modifiedAt": now, "tags": params.get("tags") or {}, "policies": {},
    }
    world.access_entries[cluster, principal] = entry
    return entry


def update_access_entry(world, params):
    entry = entry_of(world, params)
    if entry["type"] != "STANDARD":
        raise AwsError("InvalidRequestException", f"You can not modify access entries of type {entry['type']}")
    for key in ("kubernetesGroups", "username"):
        if key in params:
            entry[key] = params[key]
    entry["modifiedAt"] = time.time()
    return {"accessEntry": public(entry)}


def delete_access_entry(world, params):
    entry_of(world, params)
    del world.access_entries[params["name"], params["principal"]]
    return {}


def list_access_entries(world, params):
    policy = params.get("associatedPolicyArn")
    return page("accessEntries", [principal for (cluster, principal), entry in sorted(world.access_entries.items())
                                  if cluster == params["name"] and (policy is None or policy in entry["policies"])], params)


def associate_policy(world, params):
    entry, now = entry_of(world, params), time.time()
    if entry["type"] != "STANDARD":
        raise AwsError("InvalidRequestException", f"Access policies cannot be associated with access entries of type {entry['type']}")
    policy = {"policyArn": params["policyArn"], "accessScope": params["accessScope"], "associatedAt": now, "modifiedAt": now}
    entry["policies"][params["policyArn"]] = policy
    return {"clusterName": params["name"], "principalArn": params["principal"], "associatedAccessPolicy": policy}


def disassociate_policy(world, params):
    if entry_of(world, params)["policies"].pop(params["policy"], None) is None:
        raise AwsError("ResourceNotFoundException", f"The specified policyArn is not associated: {params['policy']}", 404)
    return {}


def list_policies(world, params):
    policies = list(entry_of(world, params)["policies"].values())
    return {"clusterName": params["name"], "principalArn": params["principal"], **page("associatedAccessPolicies", policies, params)}


# --- pod identity -------------------------------------------------------------------------------------------------------------------


def association_of(world, params):
    found = world.pod_identities.get(params["association"])
    if found is None or found["clusterName"] != params["name"]:
        raise AwsError("ResourceNotFoundException", f"No pod identity association found with id: {params['association']}", 404)
    return found


def create_association(world, params):
    key = (params["name"], params["namespace"], params["serviceAccount"])
    if any((a["clusterName"], a["namespace"], a["serviceAccount"]) == key for a in world.pod_identities.values()):
        raise AwsError("ResourceInUseException", "Association already exists: this service account has one", 409)
    identifier, now = "a-" + uuid.uuid4().hex[:17], time.time()
    world.pod_identities[identifier] = {
        "clusterName": params["name"], "namespace": params["namespace"], "serviceAccount": params["serviceAccount"],
        "roleArn": params["roleArn"], "associationId": identifier, "createdAt": now, "modifiedAt": now, "tags": params.get("tags") or {},
        "associationArn": f"arn:aws:eks:{params['region']}:{ACCOUNT}:podidentityassociation/{params['name']}/{identifier}",
    }
    return {"association": world.pod_identities[identifier]}


def update_association(world, params):
    found = association_of(world, params)
    found.update(roleArn=params.get("roleArn", found["roleArn"]), modifiedAt=time.time())
    return {"association": found}


def delete_association(world, params):
    found = association_of(world, params)
    return {"association": world.pod_identities.pop(found["associationId"])}


def list_associations(world, params):
    shown = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId")
    found = [{k: a[k] for k in shown} for a in world.pod_identities.values() if a["clusterName"] == params["name"]
             and params.get("namespace") in (None, a["namespace"]) and params.get("serviceAccount") in (None, a["serviceAccount"])]
    return page("associations", found, params)


# --- tags, versions, pages ------------------------------------------------------------------------------------------------------------


def tags_of(world, params):
    """The tags of an access entry, association or Fargate profile; None for an ARN that is moto's to answer."""
    owners = [(e["accessEntryArn"], e) for e in world.access_entries.values()]
    owners += [(a["associationArn"], a) for a in world.pod_identities.values()]
    found = next((owner["tags"] for arn, owner in owners if arn == params["arn"]), None)
    return found if found is not None else fargate_tags_of(params["region"], params["arn"])


def fargate_tags_of(region, arn):
    """moto keeps the tags of a Fargate profile, but knows no ARN of one."""
    profiles = (p for cluster in clusters_in(region).values() for p in cluster.fargate_profiles.values())
    profile = next((p for p in profiles if p.fargate_profile_arn == arn), None)
    if profile is None:
        return None
    profile.tags = profile.tags if profile.tags is not None else {}
    return profile.tags


def tag(world, params):
    tags = tags_of(world, params)
    if tags is None:
        return None
    tags.update(params.get("tags") or {})
    return {}


def untag(world, params):
    tags = tags_of(world, params)
    if tags is None:
        return None
    keys = params.get("tagKeys") or []
    for key in [keys] if isinstance(keys, str) else keys:
        tags.pop(key, None)
    return {}


def list_tags(world, params):
    tags = tags_of(world, params)
    return None if tags is None else {"tags": tags}


def list_versions(world, params):
    return {"clusterVersions": [{"clusterVersion": v, "defaultVersion": v == world.version, "clusterType": "eks", "status": "STANDARD_SUPPORT",
                                 "versionStatus": "STANDARD_SUPPORT", "defaultPlatformVersion": "eks.1"} for v in VERSIONS]}


def page(key, items, params):
    first = int(params.get("nextToken") or 0)
    last = first + int(params.get("maxResults") or 100)
    return {key: items[first:last], **({"nextToken": str(last)} if last < len(items) else {})}


ACTIONS = {
    "DescribeCluster": describe_cluster, "CreateAccessEntry": create_access_entry, "UpdateAccessEntry": update_access_entry, "DeleteAccessEntry": delete_access_entry,
    "DescribeAccessEntry": lambda world, params: {"accessEntry": public(entry_of(world, params))},
    "ListAccessEntries": list_access_entries, "AssociateAccessPolicy": associate_policy, "DisassociateAccessPolicy": disassociate_policy,
    "ListAssociatedAccessPolicies": list_policies, "CreatePodIdentityAssociation": create_association,
    "DescribePodIdentityAssociation": lambda world, params: {"association": association_of(world, params)},
    "UpdatePodIdentityAssociation": update_association, "DeletePodIdentityAssociation": delete_association,
    "ListPodIdentityAssociations": list_associations, "TagResource": tag, "UntagResource": untag, "ListTagsForResource": list_tags,
    "DescribeClusterVersions": list_versions,
}
