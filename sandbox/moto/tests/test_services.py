import base64
import json
import time
import uuid

from .stand import Stand


def token(**claims):
    """A JWT whose signature nobody checks here."""
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part({'exp': time.time() + 60, **claims})}.c2ln"


class Services(Stand):
    arguments = ["--api-endpoint", "https://127.0.0.1:6443"]

    def test_the_spot_history_and_the_products_follow_the_formula(self):
        ec2, pricing = self.client("ec2"), self.client("pricing")
        rows = [r for page in ec2.get_paginator("describe_spot_price_history").paginate(ProductDescriptions=["Linux/UNIX"])
                for r in page["SpotPriceHistory"]]
        self.assertGreater(len(rows), 5000)
        spot = {(r["InstanceType"], r["AvailabilityZone"]): float(r["SpotPrice"]) for r in rows}
        filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}, {"Type": "TERM_MATCH", "Field": "tenancy", "Value": "Shared"}]
        products = [json.loads(p) for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
                    for p in page["PriceList"]]
        prices = {}
        for product in products:
            dimension = next(iter(next(iter(product["terms"]["OnDemand"].values()))["priceDimensions"].values()))
            prices[product["product"]["attributes"]["instanceType"]] = float(dimension["pricePerUnit"]["USD"])
        self.assertAlmostEqual(prices["m5.large"], 2 * 0.0215 + 8 * 0.0029)
        self.assertAlmostEqual(prices["m6g.large"], (2 * 0.0215 + 8 * 0.0029) * 0.8)
        self.assertAlmostEqual(prices["inf1.6xlarge"], 24 * 0.0215 + 48 * 0.0029 + 4 * 0.9)
        self.assertAlmostEqual(spot["m5.large", "us-east-1b"], prices["m5.large"] * 0.35 * 1.02, places=5)

    def test_the_cluster_is_the_sandbox(self):
        cluster = self.client("eks").describe_cluster(name="sandbox")["cluster"]
        self.assertEqual((cluster["endpoint"], cluster["version"], cluster["status"]), ("https://127.0.0.1:6443", "1.36", "ACTIVE"))
        self.assertEqual(cluster["identity"]["oidc"]["issuer"], "https://127.0.0.1:6443")
        self.assertEqual(cluster["kubernetesNetworkConfig"]["serviceIpv4Cidr"], "10.0.0.0/16")
        self.assertEqual(cluster["accessConfig"]["authenticationMode"], "API_AND_CONFIG_MAP")
        self.assertEqual(cluster["resourcesVpcConfig"]["subnetIds"], self.seed["subnet_ids"])
        self.assertEqual(cluster["resourcesVpcConfig"]["vpcId"], self.seed["vpc_id"])

    def test_the_audiences_of_an_identity_provider_change(self):
        iam = self.client("iam")
        made = iam.create_open_id_connect_provider(Url="https://oidc.example.com/audiences", ClientIDList=["one"])
        arn = made["OpenIDConnectProviderArn"]
        self.addCleanup(iam.delete_open_id_connect_provider, OpenIDConnectProviderArn=arn)
        for _ in range(2):
            iam.add_client_id_to_open_id_connect_provider(OpenIDConnectProviderArn=arn, ClientID="two")
        self.assertEqual(iam.get_open_id_connect_provider(OpenIDConnectProviderArn=arn)["ClientIDList"], ["one", "two"])
        for _ in range(2):
            iam.remove_client_id_from_open_id_connect_provider(OpenIDConnectProviderArn=arn, ClientID="one")
        self.assertEqual(iam.get_open_id_connect_provider(OpenIDConnectProviderArn=arn)["ClientIDList"], ["two"])
        with self.assertRaises(iam.exceptions.NoSuchEntityException):
            iam.add_client_id_to_open_id_connect_provider(OpenIDConnectProviderArn=arn + "x", ClientID="two")

    def test_images_behind_the_aliases_exist(self):
        ssm, ec2 = self.client("ssm"), self.client("ec2")
        for name in ["/aws/service/eks/optimized-ami/1.30/amazon-linux-2023/arm64/standard/recommended/image_id",
                     "/aws/service/bottlerocket/aws-k8s-1.36/x86_64/latest/image_id"]:
            image = ssm.get_parameter(Name=name)["Parameter"]["Value"]
            self.assertEqual(len(ec2.describe_images(ImageIds=[image])["Images"]), 1)

    def test_access_entries(self):
        eks, iam = self.client("eks"), self.client("iam")
        self.refused("InvalidParameterException", eks.create_access_entry, clusterName="sandbox", principalArn="arn:aws:iam::123456789012:role/none")
        arn = iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        entry = eks.create_access_entry(clusterName="sandbox", principalArn=arn, type="EC2_LINUX", tags={"a": "b"})["accessEntry"]
        self.assertEqual((entry["kubernetesGroups"], entry["username"]), (["system:nodes"], "system:node:{{EC2PrivateDNSName}}"))
        self.refused("ResourceInUseException", eks.create_access_entry, clusterName="sandbox", principalArn=arn)
        eks.tag_resource(resourceArn=entry["accessEntryArn"], tags={"c": "d"})
        self.assertEqual(eks.describe_access_entry(clusterName="sandbox", principalArn=arn)["accessEntry"]["tags"], {"a": "b", "c": "d"})
        self.assertIn(arn, eks.list_access_entries(clusterName="sandbox")["accessEntries"])
        eks.delete_access_entry(clusterName="sandbox", principalArn=arn)
        self.refused("ResourceNotFoundException", eks.describe_access_entry, clusterName="sandbox", principalArn=arn)

    def test_a_cluster_of_the_config_map_has_no_access_entries(self):
        eks = self.client("eks")

        def mode():
            return eks.describe_cluster(name="sandbox")["cluster"]["accessConfig"]["authenticationMode"]

        self.post("settings", {"authentication_mode": "CONFIG_MAP"})
        self.addCleanup(self.post, "reset-faults", {})
        self.assertEqual(mode(), "CONFIG_MAP")
        self.refused("InvalidRequestException", eks.list_access_entries, clusterName="sandbox")
        self.refused("InvalidRequestException", eks.create_access_entry, clusterName="sandbox", principalArn="arn:aws:iam::123456789012:role/none")
        self.post("reset-faults", {})
        self.assertEqual(mode(), "API_AND_CONFIG_MAP")
        self.assertTrue(eks.list_access_entries(clusterName="sandbox")["accessEntries"])

    def test_a_cluster_of_another_region_has_its_objects_there(self):
        import boto3

        home = self.client("eks")
        there = boto3.client("eks", endpoint_url=self.url, region_name="eu-west-1", aws_access_key_id="sandbox", aws_secret_access_key="sandbox")
        role = self.seed["cluster_role_arn"]
        there.create_cluster(name="elsewhere", roleArn=role, resourcesVpcConfig={"subnetIds": self.seed["subnet_ids"]})
        self.addCleanup(there.delete_cluster, name="elsewhere")
        entry = there.create_access_entry(clusterName="elsewhere", principalArn=role, type="EC2_LINUX")["accessEntry"]
        self.addCleanup(there.delete_access_entry, clusterName="elsewhere", principalArn=role)
        of = {"clusterName": "elsewhere", "namespace": "n", "serviceAccount": "s"}
        association = there.create_pod_identity_association(roleArn=role, **of)["association"]
        self.addCleanup(there.delete_pod_identity_association, clusterName="elsewhere", associationId=association["associationId"])
        for arn in (entry["accessEntryArn"], association["associationArn"]):
            self.assertIn(":eu-west-1:", arn)
        self.refused("ResourceNotFoundException", home.describe_access_entry, clusterName="elsewhere", principalArn=role)
        self.refused("ResourceNotFoundException", home.describe_cluster, name="elsewhere")
        self.refused("ResourceNotFoundException", there.describe_cluster, name="sandbox")

    def test_the_role_of_ec2_spot_has_its_name_and_is_made_once(self):
        iam, service = self.client("iam"), "spot.amazonaws.com"
        role = iam.create_service_linked_role(AWSServiceName=service)["Role"]
        self.addCleanup(iam.delete_service_linked_role, RoleName=role["RoleName"])
        self.assertEqual((role["RoleName"], role["Path"]), ("AWSServiceRoleForEC2Spot", f"/aws-service-role/{service}/"))
        self.assertEqual(role["Arn"], f"arn:aws:iam::123456789012:role/aws-service-role/{service}/AWSServiceRoleForEC2Spot")
        with self.assertRaises(iam.exceptions.ClientError):
            iam.create_service_linked_role(AWSServiceName=service)

    def test_pod_identity_associations(self):
        eks = self.client("eks")
        made = eks.create_pod_identity_association(clusterName="sandbox", namespace="n", serviceAccount="s", roleArn="arn:aws:iam::1:role/r")["association"]
        self.assertEqual(len(eks.list_pod_identity_associations(clusterName="sandbox", namespace="n")["associations"]), 1)
        eks.delete_pod_identity_association(clusterName="sandbox", associationId=made["associationId"])
        self.assertEqual(eks.list_pod_identity_associations(clusterName="sandbox")["associations"], [])

    def test_fargate_profiles_take_time_and_turns(self):
        eks = self.client("eks")
        profile = {"clusterName": "sandbox", "podExecutionRoleArn": "arn:aws:iam::123456789012:role/pods", "subnets": self.seed["subnet_ids"],
                   "selectors": [{"namespace": "karpenter"}]}
        self.assertEqual(eks.create_fargate_profile(fargateProfileName="a", **profile)["fargateProfile"]["status"], "CREATING")
        self.refused("ResourceInUseException", eks.create_fargate_profile, fargateProfileName="b", **profile)
        self.eventually(lambda: [p["name"] for p in self.get("fargate-profiles")] == ["a"])
        self.assertEqual(eks.delete_fargate_profile(clusterName="sandbox", fargateProfileName="a")["fargateProfile"]["status"], "DELETING")
        self.eventually(lambda: not eks.list_fargate_profiles(clusterName="sandbox")["fargateProfileNames"])

    def test_a_web_identity_is_held_against_provider_and_trust_policy(self):
        iam, sts, name = self.client("iam"), self.client("sts"), "irsa-" + uuid.uuid4().hex[:6]
        good = {"iss": "https://127.0.0.1:6443", "sub": "system:serviceaccount:karpenter:karpenter", "aud": ["sts.amazonaws.com"]}
        assume = {"RoleArn": f"arn:aws:iam::123456789012:role/{name}", "RoleSessionName": "session"}
        self.refused("InvalidIdentityToken", sts.assume_role_with_web_identity, WebIdentityToken=token(**good), **assume)
        provider = iam.create_open_id_connect_provider(Url="https://127.0.0.1:6443", ClientIDList=["sts.amazonaws.com"])["OpenIDConnectProviderArn"]
        self.addCleanup(iam.delete_open_id_connect_provider, OpenIDConnectProviderArn=provider)
        self.refused("AccessDenied", sts.assume_role_with_web_identity, WebIdentityToken=token(**good), **assume)
        trust = {"Version": "2012-10-17", "Statement": [{
            "Effect": "Allow", "Principal": {"Federated": provider}, "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringEquals": {"127.0.0.1:6443:sub": good["sub"], "127.0.0.1:6443:aud": "sts.amazonaws.com"}}}]}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        for wrong, code in [({"sub": "system:serviceaccount:default:other"}, "AccessDenied"), ({"aud": ["other"]}, "InvalidIdentityToken"),
                            ({"exp": 1}, "ExpiredTokenException")]:
            self.refused(code, sts.assume_role_with_web_identity, WebIdentityToken=token(**{**good, **wrong}), **assume)
        credentials = sts.assume_role_with_web_identity(WebIdentityToken=token(**good), **assume)["Credentials"]
        import boto3

        own = boto3.client("sts", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=credentials["AccessKeyId"],
                           aws_secret_access_key=credentials["SecretAccessKey"], aws_session_token=credentials["SessionToken"])
        self.assertIn(f"assumed-role/{name}/session", own.get_caller_identity()["Arn"])

    def test_the_api_server_can_review_a_token_of_eks(self):
        def review(headers):
            sts = self.client("sts")
            url = sts.generate_presigned_url("get_caller_identity", ExpiresIn=60, HttpMethod="GET")
            url = url.replace("X-Amz-SignedHeaders=host", f"X-Amz-SignedHeaders={headers}")
            bearer = "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
            return self.post("token-review", {"apiVersion": "authentication.k8s.io/v1", "spec": {"token": bearer}})["status"]

        self.assertFalse(review("host")["authenticated"])
        self.assertIn("system:masters", review("host%3Bx-k8s-aws-id")["user"]["groups"])

    def test_discovery_tags_are_in_the_inventory(self):
        ec2, resources = self.client("ec2"), [self.seed["subnet_ids"][0], self.seed["security_group_ids"][0]]
        tag = [{"Key": "karpenter.sh/discovery", "Value": "sandbox"}]
        ec2.create_tags(Resources=resources, Tags=tag)
        self.assertEqual(self.get("inventory")["discovery_tags"], sorted(f"{r}=sandbox" for r in resources))
        found = ec2.describe_subnets(Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["sandbox"]}])["Subnets"]
        self.assertEqual([s["SubnetId"] for s in found], resources[:1])
        ec2.delete_tags(Resources=resources, Tags=tag)
        self.assertEqual(self.get("inventory")["discovery_tags"], [])
