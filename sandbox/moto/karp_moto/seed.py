"""What exists before anyone calls: the cluster with its role, network and admin. Discovery tags are left to karp_discovery_tags."""

import base64
import json

from . import eks, ssm
from .sts import CLUSTER_ADMIN
from .world import ACCOUNT

VPC_CIDR = "10.64.0.0/16"  # apart from the services' 10.0.0.0/16
SUBNETS = {"a": "10.64.0.0/19", "b": "10.64.32.0/19", "c": "10.64.64.0/19"}
SERVICE_CIDR = "10.0.0.0/16"
ADMIN = f"arn:aws:sts::{ACCOUNT}:user/moto"  # who calls with keys that no role gave, as moto names it


def seed(world):
    network(world)
    role = cluster_role(world)
    cluster(world, role)
    admin = eks.add_access_entry(world, world.cluster_name, ADMIN, "STANDARD", {})
    admin["policies"][CLUSTER_ADMIN] = {"policyArn": CLUSTER_ADMIN, "accessScope": {"type": "cluster", "namespaces": []},
                                        "associatedAt": admin["createdAt"], "modifiedAt": admin["createdAt"]}
    ssm.seed(world)
    world.seed.update(cluster_name=world.cluster_name, region=world.region, account_id=ACCOUNT, cluster_role_arn=role.arn)


def network(world):
    ec2, name = world.ec2, world.cluster_name
    vpc = ec2.create_vpc(VPC_CIDR, tags=[{"Key": "Name", "Value": name}])
    subnets = []
    for letter, cidr in SUBNETS.items():
        subnet = ec2.create_subnet(vpc.id, cidr, availability_zone=f"{world.region}{letter}")
        subnet.add_tags({"Name": f"{name}-private-{letter}"})
        subnets.append(subnet.id)
    node_group = ec2.create_security_group(f"{name}-node", "Nodes of the sandbox", vpc.id)
    node_group.add_tags({"Name": f"{name}-node"})
    cluster_group = ec2.create_security_group(f"eks-cluster-sg-{name}", "EKS created security group", vpc.id)
    cluster_group.add_tags({"Name": f"eks-cluster-sg-{name}"})
    world.seed.update(vpc_id=vpc.id, subnet_ids=subnets, security_group_ids=[node_group.id], cluster_security_group_id=cluster_group.id)


def cluster_role(world):
    trust = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}]}
    return world.iam.create_role(f"{world.cluster_name}-cluster", json.dumps(trust), "/", None, "The sandbox cluster's role", [], None)


def cluster(world, role):
    made = world.eks.create_cluster(
        name=world.cluster_name, role_arn=role.arn, version=world.version, resources_vpc_config={},
        kubernetes_network_config={"serviceIpv4Cidr": SERVICE_CIDR, "ipFamily": "ipv4"})
    made.endpoint, made.identity = world.api_endpoint, {"oidc": {"issuer": world.issuer}}
    made.certificate_authority = {"data": base64.b64encode(world.ca_pem).decode()}
    made.upgrade_policy = {"supportType": "STANDARD"}
    made.resources_vpc_config = {
        "vpcId": world.seed["vpc_id"], "subnetIds": world.seed["subnet_ids"], "securityGroupIds": [],
        "clusterSecurityGroupId": world.seed["cluster_security_group_id"], "endpointPublicAccess": True, "endpointPrivateAccess": True,
        "publicAccessCidrs": ["0.0.0.0/0"]}
