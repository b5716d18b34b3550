import threading

from .fleet_stand import FleetStand


class Fleet(FleetStand):
    def test_takes_the_cheapest_pool_and_gives_it_all_that_the_template_says(self):
        answer = self.fleet(["m5.4xlarge", "m5.large"])
        self.assertEqual(answer["Errors"], [])
        launched = answer["Instances"][0]
        self.assertEqual((launched["InstanceType"], launched["Lifecycle"]), ("m5.large", "spot"))
        self.assertEqual(launched["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"], "us-east-1c")  # factor 0.98
        one = self.instance(answer)
        tags = {t["Key"]: t["Value"] for t in one["Tags"]}
        self.assertEqual(tags["karpenter.sh/nodeclaim"], "default-1")
        self.assertEqual(tags["aws:ec2:fleet-id"], answer["FleetId"])
        self.assertIn("aws:ec2launchtemplate:id", tags)
        self.assertEqual([g["GroupId"] for g in one["SecurityGroups"]], self.seed["security_group_ids"])
        self.assertIn(self.name, one["IamInstanceProfile"]["Arn"])
        self.assertEqual(one["MetadataOptions"]["HttpTokens"], "required")
        self.assertIn("SpotInstanceRequestId", one)
        volume = self.ec2.describe_volumes(VolumeIds=[one["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]])["Volumes"][0]
        self.assertEqual((volume["Size"], volume["VolumeType"]), (20, "gp3"))
        self.assertEqual(volume["Tags"], [{"Key": "karpenter.sh/nodeclaim", "Value": "default-1"}])

    def test_on_demand_prioritized_goes_by_priority(self):
        answer = self.fleet(["m5.4xlarge", "m5.large"], capacity_type="on-demand", strategy="prioritized")
        self.assertEqual(answer["Instances"][0]["InstanceType"], "m5.4xlarge")

    def test_an_overridden_price_moves_the_choice(self):
        self.post("prices", {"spot/m5.4xlarge/us-east-1b": 0.001})
        answer = self.fleet(["m5.4xlarge", "m5.large"])
        self.assertEqual(answer["Instances"][0]["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"], "us-east-1b")

    def test_pools_without_capacity_are_errors_and_the_next_one_is_taken(self):
        self.post("capacity", [{"instance_type": "m5.large", "zone": "us-east-1c"}, {"instance_type": "m5.large", "zone": "us-east-1a", "available": 1}])
        answer = self.fleet(["m5.large"], count=2)
        self.assertEqual([e["ErrorCode"] for e in answer["Errors"]], ["InsufficientInstanceCapacity"])
        self.assertEqual({i["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] for i in answer["Instances"]}, {"us-east-1a", "us-east-1b"})
        self.post("capacity", [{"code": "MaxSpotInstanceCountExceeded"}])
        answer = self.fleet(["m5.large"])
        self.assertEqual((answer["Instances"], {e["ErrorCode"] for e in answer["Errors"]}), ([], {"MaxSpotInstanceCountExceeded"}))

    def test_a_fleet_that_gets_less_says_what_ran_out(self):
        self.post("capacity", [{"instance_type": "m5.large", "available": 1}])
        answer = self.fleet(["m5.large"], count=len(self.seed["subnet_ids"]) + 2)
        self.assertEqual(sum(len(i["InstanceIds"]) for i in answer["Instances"]), len(self.seed["subnet_ids"]))
        told = [(e["ErrorCode"], e["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"]) for e in answer["Errors"]]
        self.assertEqual(told, [("InsufficientInstanceCapacity", "m5.large")] * len(self.seed["subnet_ids"]))

    def test_a_silent_fleet_launches_nothing_and_says_no_reason(self):
        self.post("silence", [{"where": "default-1"}])
        answer = self.fleet(["m5.large"])
        self.assertEqual((answer["Instances"], answer["Errors"]), ([], []))
        self.assertEqual(len(self.fleet(["m5.large"])["Instances"]), 1)

    def test_reservations_are_of_a_tenancy(self):
        self.addCleanup(self.post, "reservations", [])
        place = {"instance_type": "m5.large", "zone": "us-east-1a", "count": 2}
        self.post("reservations", [{"id": "cr-1", **place}, {"id": "cr-2", "tenancy": "dedicated", **place}])
        told = {r["CapacityReservationId"]: r["Tenancy"] for r in self.ec2.describe_capacity_reservations()["CapacityReservations"]}
        self.assertEqual(told, {"cr-1": "default", "cr-2": "dedicated"})

        def launched(reservation, tenancy):
            data = {**self.data, "Placement": {"Tenancy": tenancy}, "CapacityReservationSpecification": {
                "CapacityReservationPreference": "capacity-reservations-only", "CapacityReservationTarget": {"CapacityReservationId": reservation}}}
            self.ec2.create_launch_template_version(LaunchTemplateName=self.name, LaunchTemplateData=data)
            return len(self.fleet(["m5.large"], capacity_type="on-demand")["Instances"])

        asked = [("cr-1", "default"), ("cr-1", "dedicated"), ("cr-2", "default"), ("cr-2", "dedicated")]
        self.assertEqual([launched(*one) for one in asked], [1, 0, 0, 1])

    def test_a_capacity_block_is_launched_into_by_its_market_in_template_and_fleet(self):
        self.addCleanup(self.post, "reservations", [])
        self.post("reservations", [{"id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1a", "count": 2, "type": "capacity-block",
                                    "end": "2030-01-01T00:00:00Z"}])
        target = {"CapacityReservationPreference": "capacity-reservations-only", "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}

        def launched(capacity_type, **market):
            data = {**self.data, "CapacityReservationSpecification": target, **market}
            self.ec2.create_launch_template_version(LaunchTemplateName=self.name, LaunchTemplateData=data)
            answer = self.fleet(["m5.large"], capacity_type=capacity_type)
            return [self.instance(answer)["InstanceLifecycle"]] if answer["Instances"] else []

        block = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
        self.assertEqual(launched("capacity-block", **block), ["capacity-block"])
        self.assertEqual([launched("on-demand", **block), launched("capacity-block"), launched("on-demand")], [[], [], []])
        target = {"CapacityReservationPreference": "none"}
        self.assertEqual(launched("capacity-block", **block), [], "there is no block to take")

    def test_reservations_are_taken_by_name_or_when_open_until_they_are_full(self):
        self.addCleanup(self.post, "reservations", [])
        self.post("reservations", [
            {"id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1b", "count": 1, "tags": {"team": "ml"}},
            {"id": "cr-2", "instance_type": "m5.large", "zone": "us-east-1a", "match": "open", "owner": "210987654321"},
            {"id": "cr-3", "instance_type": "m5.large", "zone": "us-east-1b", "type": "capacity-block", "end": "2030-01-01T00:00:00Z"}])

        def found(**asked):
            return {r["CapacityReservationId"]: r for r in self.ec2.describe_capacity_reservations(**asked)["CapacityReservations"]}

        self.assertEqual(set(found(Filters=[{"Name": "tag:team", "Values": ["ml"]}])), {"cr-1"})
        self.assertEqual(set(found(Filters=[{"Name": "instance-match-criteria", "Values": ["open"]}])), {"cr-2"})
        self.assertEqual(found(CapacityReservationIds=["cr-3"])["cr-3"]["EndDate"].year, 2030)
        self.refused("InvalidCapacityReservationId.NotFound", self.ec2.describe_capacity_reservations, CapacityReservationIds=["cr-9"])

        one = self.instance(self.fleet(["m5.large"], capacity_type="on-demand"))
        self.assertEqual(one.get("CapacityReservationId"), "cr-2" if one["Placement"]["AvailabilityZone"] == "us-east-1a" else None)

        data = {**self.data, "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-only",
                                                                  "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}}
        self.ec2.create_launch_template_version(LaunchTemplateName=self.name, LaunchTemplateData=data)
        answer = self.fleet(["m5.large"], capacity_type="on-demand")
        one = self.instance(answer)
        self.assertEqual((one["CapacityReservationId"], one["Placement"]["AvailabilityZone"]), ("cr-1", "us-east-1b"))
        self.assertEqual(one["CapacityReservationSpecification"]["CapacityReservationPreference"], "capacity-reservations-only")
        self.assertEqual(found()["cr-1"]["AvailableInstanceCount"], 0)
        codes = {e["ErrorCode"] for e in self.fleet(["m5.large"], capacity_type="on-demand")["Errors"]}
        self.assertEqual(codes, {"ReservationCapacityExceeded", "InvalidParameterValue"})
        self.post("reservations", [])
        self.assertNotIn("CapacityReservationId", self.instance(answer))

    def test_a_wrong_profile_or_type_is_an_error_of_the_override(self):
        self.iam.remove_role_from_instance_profile(InstanceProfileName=self.name, RoleName=self.name)
        self.assertEqual({e["ErrorCode"] for e in self.fleet(["m5.large", "m6g.large"])["Errors"]}, {"InvalidParameterValue"})

    def test_tags_of_spot_requests_are_for_spot_instances_and_an_interface_has_an_ipv6_address_or_prefixes(self):
        def codes(capacity_type, **more):
            self.ec2.create_launch_template_version(LaunchTemplateName=self.name, LaunchTemplateData={**self.data, **more})
            answer = self.fleet(["m5.large"], capacity_type=capacity_type)
            return {e["ErrorCode"] for e in answer["Errors"]} if not answer["Instances"] else set()

        tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "team", "Value": "ml"}]}]
        self.assertEqual(codes("spot", TagSpecifications=tags), set())
        self.assertEqual(codes("on-demand", TagSpecifications=tags), {"InvalidParameterValue"})
        both = [{"DeviceIndex": 0, "Groups": self.seed["security_group_ids"], "Ipv6AddressCount": 1, "Ipv6PrefixCount": 1}]
        self.assertEqual(codes("spot", NetworkInterfaces=both), {"InvalidParameterValue"})

    def test_a_client_token_repeats_the_answer_and_refuses_another_request(self):
        first, token = self.fleet(["m5.large"], ClientToken="uid-1"), "uid-1"
        self.assertEqual(self.fleet(["m5.large"], ClientToken=token)["Instances"], first["Instances"])
        self.refused("IdempotentParameterMismatch", self.fleet, kinds=["m5.xlarge"], ClientToken=token)
        self.assertEqual(len(self.get("inventory")["instances"]), 1)

    def test_the_life_of_an_instance_leaves_nothing(self):
        before = self.get("inventory")
        answer = self.fleet(["m5.large"])
        self.assertEqual(self.instance(answer)["State"]["Name"], "pending")
        self.eventually(lambda: self.instance(answer)["State"]["Name"] == "running")
        bridge = next(i for i in self.get("instances") if i["id"] in answer["Instances"][0]["InstanceIds"])
        self.assertEqual((bridge["user_data"], bridge["vcpus"], bridge["max_pods"], bridge["may_join"]), ("aGVsbG8=", 2, 29, False))
        self.ec2.terminate_instances(InstanceIds=answer["Instances"][0]["InstanceIds"])
        self.assertEqual(self.instance(answer)["State"]["Name"], "shutting-down")
        self.eventually(lambda: self.instance(answer)["State"]["Name"] == "terminated")
        self.assertEqual(self.get("inventory"), before)

    def test_throttling_is_used_up_by_the_calls(self):
        self.post("throttle", {"CreateFleet": 1})
        self.refused("RequestLimitExceeded", self.fleet, kinds=["m5.large"])
        self.assertTrue(self.fleet(["m5.large"])["Instances"])

    def test_a_failure_lets_the_calls_before_it_pass(self):
        self.post("fail", [{"action": "DescribeSubnets", "code": "UnauthorizedOperation", "status": 403, "after": 2}])
        self.ec2.describe_subnets(), self.ec2.describe_subnets()
        self.refused("UnauthorizedOperation", self.ec2.describe_subnets)
        self.ec2.describe_subnets()

    def test_a_failure_may_leave_dry_runs_alone(self):
        self.post("fail", [{"action": "CreateFleet", "code": "UnauthorizedOperation", "status": 403, "dry_runs": False}])
        self.refused("DryRunOperation", self.fleet, kinds=["m5.large"], DryRun=True)
        self.refused("UnauthorizedOperation", self.fleet, kinds=["m5.large"])
        self.assertTrue(self.fleet(["m5.large"])["Instances"])

    def test_a_held_call_takes_effect_before_its_reply(self):
        self.post("hold", {"action": "CreateFleet"})
        answers = []
        caller = threading.Thread(target=lambda: answers.append(self.fleet(["m5.large"])))
        caller.start()
        self.eventually(lambda: self.get("held") == {"CreateFleet": 1})
        self.assertEqual((len(self.get("inventory")["instances"]), answers), (1, []))
        self.post("release", {"action": "CreateFleet"})
        caller.join(10)
        self.assertEqual(len(answers), 1)

    def test_events_of_ec2_reach_a_queue(self):
        queues, events = self.client("sqs"), self.client("events")
        url = queues.create_queue(QueueName=self.name)["QueueUrl"]
        arn = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events.put_rule(Name=self.name, EventPattern='{"source":["aws.ec2"],"detail-type":["EC2 Spot Instance Interruption Warning"]}')
        events.put_targets(Rule=self.name, Targets=[{"Id": "1", "Arn": arn}])
        self.addCleanup(queues.delete_queue, QueueUrl=url)
        self.addCleanup(events.delete_rule, Name=self.name)
        self.addCleanup(events.remove_targets, Rule=self.name, Ids=["1"])
        answer = self.fleet(["m5.large"])
        self.post("interrupt", {"instance_id": answer["Instances"][0]["InstanceIds"][0], "after_seconds": 0.5})
        messages = queues.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
        self.assertIn('"instance-action": "terminate"', messages[0]["Body"].replace('":"', '": "'))
        self.eventually(lambda: self.instance(answer)["State"]["Name"] == "terminated")

    def test_instances_are_well_unless_it_is_said_otherwise(self):
        answer = self.fleet(["m5.large"])
        one = answer["Instances"][0]["InstanceIds"][0]
        self.eventually(lambda: self.instance(answer)["State"]["Name"] == "running")
        self.addCleanup(self.post, "statuses", [])

        def told(name, value):
            found = self.ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])["InstanceStatuses"]
            return {s["InstanceId"]: s for s in found}

        self.assertIn(one, told("system-status.status", "ok"))
        self.assertNotIn(one, told("system-status.status", "impaired"))
        self.post("statuses", [{"instance_id": one, "system": "2026-11-21T10:00:00Z",
                                "events": [{"code": "instance-retirement", "description": "soon", "not_before": "2026-12-01T00:00:00Z"}]}])
        system = told("system-status.status", "impaired")[one]["SystemStatus"]
        self.assertEqual(system["Details"][0]["ImpairedSince"].isoformat(), "2026-11-21T10:00:00+00:00")
        self.assertNotIn(one, told("instance-status.status", "impaired"))
        event = told("event.code", "instance-retirement")[one]["Events"][0]
        self.assertEqual((event["Description"], event["NotBefore"].day), ("soon", 1))
        self.post("reset-faults", {})
        self.assertNotIn(one, told("event.code", "instance-retirement"))

    def test_calls_are_logged_with_their_parameters(self):
        self.fleet(["m5.large"])
        last = self.get("calls?action=CreateFleet")[-1]
        self.assertEqual((last["service"], last["status"], last["params"]["Type"]), ("ec2", 200, "instant"))
