import uuid

from .stand import Stand


class FleetStand(Stand):
    """A launch template with all that a node needs, and fleets of it."""

    def setUp(self):
        self.ec2, self.iam = self.client("ec2"), self.client("iam")
        self.post("reset-faults", {})
        self.post("prices", {})
        self.addCleanup(self.end_all)
        self.name = "karp-" + uuid.uuid4().hex[:8]
        image = self.client("ssm").get_parameter(
            Name="/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/standard/recommended/image_id")["Parameter"]["Value"]
        self.iam.create_role(RoleName=self.name, AssumeRolePolicyDocument="{}")
        self.iam.create_instance_profile(InstanceProfileName=self.name)
        self.iam.add_role_to_instance_profile(InstanceProfileName=self.name, RoleName=self.name)
        self.data = {
            "ImageId": image, "UserData": "aGVsbG8=", "IamInstanceProfile": {"Name": self.name},
            "SecurityGroupIds": self.seed["security_group_ids"], "MetadataOptions": {"HttpTokens": "required"},
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "DeleteOnTermination": True}}],
        }
        self.ec2.create_launch_template(LaunchTemplateName=self.name, LaunchTemplateData=self.data)

    def end_all(self):
        self.post("reset-faults", {})
        live = self.get("inventory")["instances"]
        if live:
            self.ec2.terminate_instances(InstanceIds=live)

    def fleet(self, kinds, count=1, capacity_type="spot", strategy="price-capacity-optimized", **more):
        overrides = [{"InstanceType": k, "SubnetId": s, "Priority": float(p)} for p, k in enumerate(kinds) for s in self.seed["subnet_ids"]]
        options = {"SpotOptions" if capacity_type == "spot" else "OnDemandOptions": {"AllocationStrategy": strategy}}
        return self.ec2.create_fleet(
            Type="instant", TargetCapacitySpecification={"TotalTargetCapacity": count, "DefaultTargetCapacityType": capacity_type},
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": {"LaunchTemplateName": self.name, "Version": "$Latest"}, "Overrides": overrides}],
            TagSpecifications=[{"ResourceType": kind, "Tags": [{"Key": "karpenter.sh/nodeclaim", "Value": "default-1"}]}
                               for kind in ("instance", "volume", "fleet")], **options, **more)

    def instance(self, answer):
        found = self.ec2.describe_instances(InstanceIds=[answer["Instances"][0]["InstanceIds"][0]])
        return found["Reservations"][0]["Instances"][0]
