"""Sandbox prices, the spot history and the Pricing service.

On-demand, $ per hour: (0.0215 per vCPU + 0.0029 per GiB), a fifth less on arm64, + 0.9 per GPU or other accelerator.
Spot: 0.35 of that, times 1.00, 1.02, 0.98 in zones a, b, c and 1.00 elsewhere. Every price can be overridden by a test.
"""

import datetime
import hashlib
import json

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from .call import AwsError, json_answer

SPOT_SHARE = 0.35
ZONE_FACTOR = {"a": 1.00, "b": 1.02, "c": 0.98}
PAGE = 100  # products on a page of the Pricing service, its maximum
HISTORY_PAGE = 1000  # rows on a page of the spot history


def on_demand(kind):
    """The formula for one entry of the instance-type table."""
    compute = 0.0215 * kind["VCpuInfo"]["DefaultVCpus"] + 0.0029 * kind["MemoryInfo"]["SizeInMiB"] / 1024
    if "arm64" in kind["ProcessorInfo"]["SupportedArchitectures"]:
        compute *= 0.8
    return compute + 0.9 * accelerators(kind)


def accelerators(kind):
    gpus = sum(g["Count"] for g in (kind.get("GpuInfo") or {}).get("Gpus", []))
    neuron = sum(d["Count"] for d in (kind.get("NeuronInfo") or {}).get("NeuronDevices", []))
    inference = sum(a["Count"] for a in (kind.get("InferenceAcceleratorInfo") or {}).get("Accelerators", []))
    return gpus + max(neuron, inference)  # inf1 is listed as both


def price(world, capacity_type, instance_type, zone):
    formula = on_demand(INSTANCE_TYPES[instance_type])
    if capacity_type != "spot":
        return world.prices.get(f"on-demand/{instance_type}", formula)
    own = world.prices.get(f"spot/{instance_type}/{zone}", world.prices.get(f"spot/{instance_type}"))
    return own if own is not None else formula * SPOT_SHARE * ZONE_FACTOR.get(zone[-1], 1.0)


def install(world):
    def describe_spot_price_history(self):
        filters, types = self._filters_from_querystring(), set(self._get_param("InstanceTypes", []))
        types |= set(filters.get("instance-type", []))
        zones = set(filters.get("availability-zone", [])) | {z for z in [self._get_param("AvailabilityZone")] if z}
        rows = [r for r in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(self.region, [])
                if (not types or r["InstanceType"] in types) and (not zones or r["Location"] in zones)
                and "spot" in INSTANCE_TYPES[r["InstanceType"]]["SupportedUsageClasses"]]
        first = int(self._get_param("NextToken") or 0)
        last = first + min(int(self._get_param("MaxResults") or HISTORY_PAGE), HISTORY_PAGE)
        now = datetime.datetime.now(datetime.timezone.utc)
        history = [{"InstanceType": r["InstanceType"], "ProductDescription": "Linux/UNIX", "AvailabilityZone": r["Location"],
                    "SpotPrice": f"{price(world, 'spot', r['InstanceType'], r['Location']):.6f}", "Timestamp": now} for r in rows[first:last]]
        return ActionResult({"SpotPriceHistory": history, "NextToken": str(last) if last < len(rows) else ""})

    EC2Response.describe_spot_price_history = describe_spot_price_history
    EC2Response.describe_placement_groups = lambda self: ActionResult({"PlacementGroups": []})


def answer(world, call):
    """The Pricing service: GetProducts over Linux on-demand products of this region."""
    if call.action != "GetProducts":
        raise AwsError("InvalidParameterException", f"the sandbox's Pricing service does not know {call.action}")
    if call.params.get("ServiceCode") != "AmazonEC2":
        raise AwsError("NotFoundException", f"no products of service {call.params.get('ServiceCode')}")
    filters = [(f["Field"], f["Value"]) for f in call.params.get("Filters") or []]
    found = [p for p in products(world) if all(p["product"]["attributes"].get(k, p["product"].get(k)) == v for k, v in filters)]
    first = int(call.params.get("NextToken") or 0)
    last = first + min(int(call.params.get("MaxResults") or PAGE), PAGE)
    page = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(p) for p in found[first:last]]}
    if last < len(found):
        page["NextToken"] = str(last)
    return json_answer(page)


def products(world):
    offered = {r["InstanceType"] for r in INSTANCE_TYPE_OFFERINGS["region"].get(world.region, [])}
    return [product(world, name) for name in INSTANCE_TYPES if name in offered]


def product(world, name):
    sku, kind = hashlib.sha256(name.encode()).hexdigest()[:16].upper(), INSTANCE_TYPES[name]
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"  # the offer and rate codes that EC2 uses for on-demand hours
    attributes = {
        "servicecode": "AmazonEC2", "servicename": "Amazon Elastic Compute Cloud", "regionCode": world.region, "instanceType": name,
        "operatingSystem": "Linux", "preInstalledSw": "NA", "tenancy": "Shared", "capacitystatus": "Used", "marketoption": "OnDemand",
        "licenseModel": "No License required", "operation": "RunInstances", "locationType": "AWS Region",
        "vcpu": str(kind["VCpuInfo"]["DefaultVCpus"]), "memory": f"{kind['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
    }
    family = "Compute Instance (bare metal)" if kind["BareMetal"] else "Compute Instance"
    usd = f"{price(world, 'on-demand', name, ''):.10f}"
    return {
        "product": {"productFamily": family, "sku": sku, "attributes": attributes}, "serviceCode": "AmazonEC2", "version": "sandbox",
        "terms": {"OnDemand": {term: {"sku": sku, "offerTermCode": "JRTCKXETXF", "termAttributes": {}, "priceDimensions": {
            rate: {"rateCode": rate, "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "appliesTo": [], "pricePerUnit": {"USD": usd}}}}}},
    }
