import time
import uuid

from botocore.exceptions import ConnectionClosedError, ConnectionError as Disconnected

from .fleet_stand import FleetStand


class Faults(FleetStand):
    """What goes wrong when a test asks for it. Compilers run beside these tests: what they play lasts longer than calls that wait for a processor."""

    def listed(self, **params):
        return [i["InstanceId"] for r in self.ec2.describe_instances(**params)["Reservations"] for i in r["Instances"]]

    def launched(self, **more):
        return self.fleet(["m5.large"], capacity_type="on-demand", strategy="lowest-price", **more)["Instances"][0]["InstanceIds"][0]

    def test_a_young_instance_is_unknown_by_filter_and_by_id(self):
        self.post("hide", [{"where": "default-1", "young_seconds": 3}])
        one, tagged = self.launched(), [{"Name": "tag:karpenter.sh/nodeclaim", "Values": ["default-1"]}]
        self.assertNotIn(one, self.listed(Filters=tagged))
        self.assertNotIn(one, self.listed(Filters=[{"Name": "instance-id", "Values": [one]}]))
        for call in (self.ec2.describe_instances, self.ec2.terminate_instances, self.ec2.describe_instance_status):
            self.refused("InvalidInstanceID.NotFound", call, InstanceIds=[one])
        self.assertEqual(self.get(f"instance?id={one}")["id"], one)
        self.eventually(lambda: one in self.listed(Filters=tagged))
        self.assertIn(one, self.listed(InstanceIds=[one]))

    def test_a_list_misses_what_is_there(self):
        one, other = self.launched(), self.launched()
        self.post("hide", [{"ids": [one], "lists_only": True, "seconds": 3}])
        self.assertEqual((one in self.listed(), other in self.listed()), (False, True))
        self.assertEqual(self.listed(InstanceIds=[one]), [one])
        self.assertEqual(self.listed(Filters=[{"Name": "instance-id", "Values": [one]}]), [one])
        self.eventually(lambda: one in self.listed())

    def test_instances_are_described_in_pages_of_which_some_fail(self):
        some = [self.launched() for _ in range(3)]
        self.post("settings", {"instance_page": 1})
        self.addCleanup(self.post, "reset-faults", {})
        wanted = {"listed": [], "named": [{"Name": "instance-id", "Values": some}]}
        for kind, filters in wanted.items():
            first = self.ec2.describe_instances(Filters=filters, MaxResults=1000)
            [reservation] = first["Reservations"]
            self.assertEqual(first["NextToken"], f"{kind}-{reservation['Instances'][-1]['InstanceId']}")
            pages = self.ec2.get_paginator("describe_instances").paginate(Filters=filters)
            ids = [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]
            self.assertEqual((len(ids), set(some) - set(ids)), (len(set(ids)), set()), "each once, none left out")
        self.assertEqual(set(self.listed(InstanceIds=some)), set(some), "a call that names instances has one page")
        self.post("fail", [{"action": "DescribeInstances", "where": "listed-"}])
        self.refused("InternalError", self.ec2.describe_instances, NextToken=self.ec2.describe_instances()["NextToken"])
        self.post("reset-faults", {})
        self.assertNotIn("NextToken", self.ec2.describe_instances())

    def test_a_connection_is_cut_before_or_after_the_effect(self):
        count = len(self.get("inventory")["instances"])
        for when, more in (("before", 0), ("after", 1)):
            self.post("cut", [{"action": "CreateFleet", "when": when, "where": "default-1"}])
            with self.assertRaises((ConnectionClosedError, Disconnected)):
                self.launched(ClientToken=f"{self.name}-{when}")
            self.assertEqual(len(self.get("inventory")["instances"]), count + more, when)
        again = self.launched(ClientToken=f"{self.name}-after")
        self.assertIn(again, self.get("inventory")["instances"])
        self.assertEqual(len(self.get("inventory")["instances"]), count + 1, "the token is known")

    def test_rules_hold_for_a_while_and_for_those_that_they_name(self):
        self.post("throttle", {"*": {"seconds": 2}})
        self.refused("RequestLimitExceeded", self.ec2.describe_instances)
        self.refused("RequestLimitExceeded", self.ec2.describe_subnets)
        self.eventually(lambda: time.sleep(0.2) or not self.throttled())
        self.post("fail", [{"action": "CreateFleet", "where": "another-pool", "code": "UnauthorizedOperation", "status": 403}])
        self.launched()
        self.post("fail", [{"action": "CreateFleet", "where": "default-1", "code": "UnauthorizedOperation", "status": 403, "times": 100}])
        self.refused("UnauthorizedOperation", self.fleet, kinds=["m5.large"])
        self.post("fail", [{"action": "CreateFleet", "where": "default-1", "times": 0}])
        self.launched()

    def test_calls_are_counted_by_token_buckets(self):
        self.post("rates", {"DescribeSubnets": {"per_second": 0.5, "burst": 3}})
        for _ in range(3):
            self.ec2.describe_subnets()
        self.refused("RequestLimitExceeded", self.ec2.describe_subnets)
        self.ec2.describe_instances()
        time.sleep(2.2)
        self.ec2.describe_subnets()
        self.refused("RequestLimitExceeded", self.ec2.describe_subnets)
        self.post("reset-faults", {})
        self.ec2.describe_subnets()

    def throttled(self):
        try:
            self.ec2.describe_instances()
        except self.ec2.exceptions.ClientError:
            return True
        return False

    def test_a_profile_is_known_to_ec2_after_a_while(self):
        self.post("settings", {"profile_seconds": 3})
        name = "late-" + uuid.uuid4().hex[:8]
        self.iam.create_instance_profile(InstanceProfileName=name)
        self.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=self.name)
        run = {"ImageId": self.data["ImageId"], "MinCount": 1, "MaxCount": 1, "DryRun": True, "IamInstanceProfile": {"Name": name}}
        self.refused("InvalidParameterValue", self.ec2.run_instances, **run)
        self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={**self.data, "IamInstanceProfile": {"Name": name}})
        self.name = name
        refused = self.fleet(["m5.large"])["Errors"][0]
        self.assertEqual(refused["ErrorCode"], "InvalidParameterValue")
        self.assertIn("Invalid IAM Instance Profile name", refused["ErrorMessage"])
        self.eventually(lambda: self.fleet(["m5.large"])["Instances"])
        self.refused("DryRunOperation", self.ec2.run_instances, **run)

    def test_a_subnet_is_full_and_a_family_is_gone(self):
        full = self.seed["subnet_ids"][0]
        self.post("capacity", [{"subnet": full, "code": "InsufficientFreeAddressesInSubnet"}, {"instance_type": "m5.*"}])
        answer = self.fleet(["m5.large", "m5.xlarge", "m6i.large"], capacity_type="on-demand", strategy="lowest-price")
        self.assertEqual(answer["Instances"][0]["InstanceType"], "m6i.large")
        codes = {e["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"]: e["ErrorCode"] for e in answer["Errors"]}
        self.assertEqual(codes.pop(full), "InsufficientFreeAddressesInSubnet")
        self.assertEqual(set(codes.values()), {"InsufficientInstanceCapacity"})

    def test_placement_groups(self):
        self.refused("InvalidPlacementGroup.Unknown", self.ec2.describe_placement_groups, GroupNames=["near"])
        self.post("placement-groups", [{"id": "pg-1", "name": "near"}, {"id": "pg-2", "name": "apart", "strategy": "partition", "partitions": 3}])
        found = self.ec2.describe_placement_groups(GroupNames=["apart"])["PlacementGroups"]
        self.assertEqual([(g["GroupId"], g["Strategy"], g["PartitionCount"], g["State"]) for g in found], [("pg-2", "partition", 3, "available")])
        name = self.name = "placed-" + uuid.uuid4().hex[:8]
        self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={**self.data, "Placement": {"GroupId": "pg-2", "PartitionNumber": 2}})
        placed = self.instance(self.fleet(["m5.large"]))["Placement"]
        self.assertEqual((placed["GroupId"], placed["GroupName"], placed["PartitionNumber"]), ("pg-2", "apart", 2))
        self.post("placement-groups", [])
        self.assertEqual(self.fleet(["m5.large"])["Errors"][0]["ErrorCode"], "InvalidPlacementGroup.Unknown")

    def test_images_and_parameters_of_ones_own(self):
        self.post("images", [{"id": "ami-0001", "name": "own-1", "tags": {"team": "a"}},
                             {"id": "ami-0002", "name": "own-2", "owner": "111122223333", "architecture": "arm64", "deprecated_at": "2026-01-01T00:00:00.000Z"}])
        self.post("parameters", {"/own/image": "ami-0001"})
        self.assertEqual(self.client("ssm").get_parameter(Name="/own/image")["Parameter"]["Value"], "ami-0001")
        tagged = self.ec2.describe_images(Filters=[{"Name": "tag:team", "Values": ["a"]}], Owners=["self", "amazon"])["Images"]
        self.assertEqual([i["ImageId"] for i in tagged], ["ami-0001"])
        theirs = self.ec2.describe_images(Owners=["111122223333"], IncludeDeprecated=True)["Images"]
        self.assertEqual([(i["ImageId"], i["Architecture"], i["DeprecationTime"]) for i in theirs], [("ami-0002", "arm64", "2026-01-01T00:00:00.000Z")])
        self.ec2.deregister_image(ImageId="ami-0001")
        self.assertEqual(self.ec2.describe_images(Filters=[{"Name": "name", "Values": ["own-1"]}])["Images"], [])
        self.post("images", [])
