import json
import tempfile
from pathlib import Path

import boto3

from .stand import Stand

OWNED = {"kubernetes.io/cluster/sandbox": "owned", "karpenter.sh/nodepool": "p", "eks:eks-cluster-name": "sandbox"}
POLICY = {"Version": "2012-10-17", "Statement": [{"Sid": "All", "Effect": "Allow", "Action": "*", "Resource": "*"}]}
EC2 = "arn:aws:ec2:us-east-1:123456789012:"


def listed(tags):
    return [{"Key": k, "Value": v} for k, v in tags.items()]


def specified(kinds, tags):
    return [{"ResourceType": kind, "Tags": listed(tags)} for kind in kinds]


def of(kind, tags=None):
    return {f"aws:{kind}/{k}": [v] for k, v in (OWNED if tags is None else tags).items()}


def requested(tags=None):
    return {**of("RequestTag", tags), "aws:TagKeys": sorted(OWNED if tags is None else tags)}


class Rights(Stand):
    log = Path(tempfile.mkdtemp()) / "rights.jsonl"
    arguments = ["--rights-log", str(log)]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        iam = cls.client("iam")
        cls.role = iam.create_role(RoleName="KarpControllerRole-t", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        iam.put_role_policy(RoleName="KarpControllerRole-t", PolicyName="p", PolicyDocument=json.dumps(POLICY))
        iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="nodes")
        iam.add_role_to_instance_profile(InstanceProfileName="nodes", RoleName="nodes")
        cls.image = cls.client("ec2").describe_images()["Images"][0]["ImageId"]

    def session(self, service):
        keys = self.client("sts").assume_role(RoleArn=self.role, RoleSessionName="session")["Credentials"]
        return boto3.client(service, endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=keys["AccessKeyId"],
                            aws_secret_access_key=keys["SecretAccessKey"], aws_session_token=keys["SessionToken"])

    def asked(self, action):
        """What the last call of an action asked for: action and resource with their context."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.assertFalse([line for line in lines if "broken" in line])
        last = [line for line in lines if line.get("action") == action][-1]
        self.assertEqual(last["role"], "KarpControllerRole-t")
        self.assertIn({"policy": last["policy"], "documents": [POLICY]}, lines)
        for one in last["requests"]:
            self.assertEqual(one["context"].pop("aws:RequestedRegion"), ["us-east-1"])
        return {(one["action"], one["resource"]): one["context"] for one in last["requests"]}

    def template(self, name, spot=False, **more):
        kinds = ["network-interface", *(["spot-instances-request"] if spot else [])]
        data = {"ImageId": self.image, "IamInstanceProfile": {"Name": "nodes"},
                "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": self.seed["security_group_ids"]}],
                "TagSpecifications": specified(kinds, OWNED), **more}
        made = self.session("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data, TagSpecifications=specified(["launch-template"], OWNED))
        return made["LaunchTemplate"]["LaunchTemplateId"]

    def fleet(self, template, capacity_type, **more):
        return self.session("ec2").create_fleet(
            Type="instant", LaunchTemplateConfigs=[{"LaunchTemplateSpecification": {**template, "Version": "$Latest"}, "Overrides": [
                {"InstanceType": kind, "SubnetId": self.seed["subnet_ids"][0]} for kind in ("m5.large", "c5.large")]}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": capacity_type},
            TagSpecifications=specified(["instance", "volume", "fleet"], {**OWNED, "Name": "n"}), **more)

    def test_callers_without_a_role_are_not_in_it(self):
        self.client("ec2").describe_instance_status()
        self.assertNotIn("DescribeInstanceStatus", self.log.read_text() if self.log.exists() else "")
        self.session("ec2").describe_instance_status()
        self.assertEqual(self.asked("ec2:DescribeInstanceStatus"), {("ec2:DescribeInstanceStatus", "*"): {}})

    def test_a_launch_asks_for_what_it_makes_takes_and_passes_on(self):
        template = self.template("launch", spot=True)
        made = self.asked("ec2:CreateLaunchTemplate")
        self.assertEqual(made, {("ec2:CreateLaunchTemplate", EC2 + "launch-template/*"): requested(),
                                ("ec2:CreateTags", EC2 + "launch-template/*"): {**requested(), "ec2:CreateAction": ["CreateLaunchTemplate"]}})
        self.fleet({"LaunchTemplateName": "launch"}, "spot")
        asked, tags = self.asked("ec2:CreateFleet"), {**OWNED, "Name": "n"}
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            self.assertEqual(asked.pop((action, EC2 + f"launch-template/{template}")), of("ResourceTag"))
            self.assertEqual(asked.pop((action, f"arn:aws:ec2:us-east-1::image/{self.image}")), {})
            self.assertEqual(asked.pop((action, EC2 + f"subnet/{self.seed['subnet_ids'][0]}"))["aws:ResourceTag/Name"], ["sandbox-private-a"])
            for kind in ("instance", "volume"):
                self.assertEqual(asked.pop((action, EC2 + f"{kind}/*")), requested(tags))
        asked.pop(("ec2:RunInstances", EC2 + f"security-group/{self.seed['security_group_ids'][0]}"))
        self.assertEqual(asked.pop(next(key for key in asked if key[0] == "ec2:RunInstances" and "::snapshot/" in key[1])), {})
        self.assertEqual(asked.pop(("ec2:CreateFleet", EC2 + "fleet/*")), requested(tags))
        for kind in ("network-interface", "spot-instances-request"):
            self.assertEqual(asked.pop(("ec2:RunInstances", EC2 + f"{kind}/*")), requested())
        self.assertEqual(asked.pop(("iam:PassRole", "arn:aws:iam::123456789012:role/nodes")), {"iam:PassedToService": ["ec2.amazonaws.com"]})
        self.assertEqual(sorted(asked), [("ec2:CreateTags", EC2 + f"{kind}/*") for kind in (
            "fleet", "instance", "network-interface", "spot-instances-request", "volume")])

    def test_on_demand_asks_for_no_spot_request_and_what_is_not_there_for_nothing(self):
        self.template("on-demand")
        self.fleet({"LaunchTemplateName": "on-demand"}, "on-demand")
        self.assertFalse([r for _, r in self.asked("ec2:CreateFleet") if "spot-instances-request" in r])
        with self.assertRaisesRegex(Exception, "DryRunOperation"):
            self.fleet({"LaunchTemplateId": "lt-1234567890abcdef0"}, "on-demand", DryRun=True)
        self.assertEqual({r for _, r in self.asked("ec2:CreateFleet")}, {EC2 + f"{kind}/*" for kind in ("fleet", "instance", "volume")})

    def test_a_dry_run_of_an_instance_asks_as_a_launch_does(self):
        subnet, groups = self.seed["subnet_ids"][0], self.seed["security_group_ids"]
        with self.assertRaisesRegex(Exception, "DryRunOperation"):
            self.session("ec2").run_instances(
                DryRun=True, MinCount=1, MaxCount=1, InstanceType="m5.large", ImageId=self.image, IamInstanceProfile={"Name": "nodes"},
                NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": subnet, "Groups": groups}], TagSpecifications=specified(["instance", "volume"], OWNED))
        asked = self.asked("ec2:RunInstances")
        self.assertEqual(asked["ec2:RunInstances", EC2 + "instance/*"], requested())
        self.assertEqual(asked["ec2:RunInstances", EC2 + "network-interface/*"], {}, "nobody tagged it")
        self.assertEqual(asked["ec2:CreateTags", EC2 + "volume/*"], {**requested(), "ec2:CreateAction": ["RunInstances"]})
        for resource in (f"{EC2}subnet/{subnet}", f"{EC2}security-group/{groups[0]}", f"arn:aws:ec2:us-east-1::image/{self.image}"):
            self.assertIn(("ec2:RunInstances", resource), asked)
        self.assertIn(("iam:PassRole", "arn:aws:iam::123456789012:role/nodes"), asked)

    def test_what_exists_goes_by_the_tags_that_it_has_at_the_time(self):
        self.template("ended")
        instance = self.fleet({"LaunchTemplateName": "ended"}, "on-demand")["Instances"][0]["InstanceIds"][0]
        ec2, resource = self.session("ec2"), EC2 + f"instance/{instance}"
        ec2.create_tags(Resources=[instance], Tags=listed({"Name": "m"}))
        before = self.asked("ec2:CreateTags")[("ec2:CreateTags", resource)]
        self.assertEqual((before["aws:ResourceTag/Name"], before["aws:RequestTag/Name"], before["aws:TagKeys"]), (["n"], ["m"], ["Name"]))
        self.assertNotIn("ec2:CreateAction", before)
        ec2.terminate_instances(InstanceIds=[instance])
        self.assertEqual(self.asked("ec2:TerminateInstances")[("ec2:TerminateInstances", resource)]["aws:ResourceTag/Name"], ["m"])
        self.refused("InvalidInstanceID.NotFound", ec2.terminate_instances, InstanceIds=["i-0123456789abcdef0"])
        self.assertEqual(self.asked("ec2:TerminateInstances"), {})
        ec2.delete_launch_template(LaunchTemplateName="ended")
        (_, gone), = self.asked("ec2:DeleteLaunchTemplate").items()
        self.assertEqual(gone, of("ResourceTag"))

    def test_profiles_go_by_their_path_and_pass_their_role(self):
        iam, path = self.session("iam"), "/karpenter/us-east-1/sandbox/uid/"
        arn = f"arn:aws:iam::123456789012:instance-profile{path}made"
        self.refused("NoSuchEntity", iam.get_instance_profile, InstanceProfileName="made")
        self.assertEqual(self.asked("iam:GetInstanceProfile"), {("iam:GetInstanceProfile", "arn:aws:iam::123456789012:instance-profile/made"): {}})
        iam.create_instance_profile(InstanceProfileName="made", Path=path, Tags=listed(OWNED))
        self.assertEqual(self.asked("iam:CreateInstanceProfile"), {
            ("iam:CreateInstanceProfile", arn): requested(), ("iam:TagInstanceProfile", arn): {**requested(), **of("ResourceTag")}})
        iam.add_role_to_instance_profile(InstanceProfileName="made", RoleName="nodes")
        self.assertEqual(self.asked("iam:AddRoleToInstanceProfile"), {
            ("iam:AddRoleToInstanceProfile", arn): of("ResourceTag"),
            ("iam:PassRole", "arn:aws:iam::123456789012:role/nodes"): {"iam:PassedToService": ["ec2.amazonaws.com"]}})
        iam.list_instance_profiles(PathPrefix=path)
        self.assertEqual(list(self.asked("iam:ListInstanceProfiles")), [("iam:ListInstanceProfiles", "*")])
        iam.remove_role_from_instance_profile(InstanceProfileName="made", RoleName="nodes")
        iam.delete_instance_profile(InstanceProfileName="made")
        self.assertEqual(self.asked("iam:DeleteInstanceProfile"), {("iam:DeleteInstanceProfile", arn): of("ResourceTag")})

    def test_queues_parameters_and_clusters_are_named(self):
        url = self.client("sqs").create_queue(QueueName="q")["QueueUrl"]
        sqs, queue = self.session("sqs"), "arn:aws:sqs:us-east-1:123456789012:q"
        sqs.get_queue_url(QueueName="q")
        self.assertEqual(list(self.asked("sqs:GetQueueUrl")), [("sqs:GetQueueUrl", queue)])
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "0", "ReceiptHandle": "r"}])
        self.assertEqual(list(self.asked("sqs:DeleteMessageBatch")), [("sqs:DeleteMessage", queue)])
        name = "aws/service/bottlerocket/aws-k8s-1.36/x86_64/latest/image_id"
        self.session("ssm").get_parameter(Name=f"/{name}")
        self.assertEqual(list(self.asked("ssm:GetParameter")), [("ssm:GetParameter", f"arn:aws:ssm:us-east-1::parameter/{name}")])
        self.session("pricing").get_products(ServiceCode="AmazonEC2", MaxResults=1)
        self.assertEqual(list(self.asked("pricing:GetProducts")), [("pricing:GetProducts", "*")])
        self.session("eks").describe_cluster(name="sandbox")
        self.assertEqual(list(self.asked("eks:DescribeCluster")), [("eks:DescribeCluster", "arn:aws:eks:us-east-1:123456789012:cluster/sandbox")])

    def test_a_call_without_a_rule_is_not_passed_over(self):
        self.session("ec2").stop_instances(InstanceIds=[])
        self.assertEqual(list(self.asked("ec2:StopInstances")), [("ec2:StopInstances", "*")])
