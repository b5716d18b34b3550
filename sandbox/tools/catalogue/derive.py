#!/usr/bin/env python3
"""Derives shared/domain/src/catalogue/builtin.tsv from two published packages: moto (Python) for what EC2's DescribeInstanceTypes
says, and AWS's VPC resource controller (Go) for the branch interfaces, which no API tells.

usage (from the root of the repository; MODULE is the Dir that `go mod download -json` prints):
    pip download --no-deps moto==5.2.5 -d DIR
    (cd DIR && echo 'module derive' > go.mod && go mod download -json github.com/aws/amazon-vpc-resource-controller-k8s@v1.8.2)
    python3 sandbox/tools/catalogue/derive.py DIR/moto-5.2.5-py3-none-any.whl MODULE > shared/domain/src/catalogue/builtin.tsv

One row a type, ordered by name. Types without hardware virtualisation (hvm) or with an architecture that Kubernetes nodes on EC2 do
not run (i386 only, mac) are left out."""
import gzip
import hashlib
import json
import pathlib
import re
import sys
import zipfile

RESOURCE = "moto/ec2/resources/instance_types.json.gz"
LIMITS = "pkg/aws/vpc/limits.go"
COLUMNS = (
    "name arch vcpu memory_mib enis ipv4_per_eni network_cards efa gpus gpu_name gpu_maker gpu_mib "
    "accelerators accelerator_name accelerator_maker neuron_cores nvme_gb hypervisor metal clock_mhz maker "
    "ebs_mbps network_mbps encrypted on_demand spot branch_enis further_enis enclaves nested_vms "
    "ebs_attachments attachments_shared cluster_groups efa_cards"
).split()


def kebab(name):
    return name.lower().replace(" ", "-")


def branch_enis(source):
    """Reads the limits table: a type's branch interfaces where its interfaces can be trunks."""
    found = {}
    for name, body in re.findall(r'\n\t"([a-z0-9.-]+)": \{\n(.*?)\n\t\},', source, re.DOTALL):
        fields = dict(re.findall(r"^\t\t(\w+):\s+(\w+),$", body, re.MULTILINE))
        found[name] = int(fields["BranchInterface"]) if fields["IsTrunkingCompatible"] == "true" else 0
    if len(found) < 1000:
        sys.exit(f"{LIMITS}: only {len(found)} types were read: its form has changed")
    return found


def network_mbps(cards, performance):
    """The baseline, unless EC2 publishes no figure for the type but a word ("Moderate")."""
    if "Gigabit" not in performance:
        return 0
    return round(sum(c.get("BaselineBandwidthInGbps", 0) for c in cards.values()) * 1000)


def ranges(numbers):
    """Writes ascending numbers as 0-3,7; a dash for none."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "-"


def ebs_mbps(ebs):
    optimised = ebs.get("EbsOptimizedSupport") == "default"
    return ebs.get("EbsOptimizedInfo", {}).get("MaximumBandwidthInMbps", 0) if optimised else 0


def row(t, branches):
    arches = t["ProcessorInfo"]["SupportedArchitectures"]
    arch = "amd64" if "x86_64" in arches else "arm64" if "arm64" in arches else None
    if arch is None or "hvm" not in t["SupportedVirtualizationTypes"]:
        return None
    net = t["NetworkInfo"]
    cards = {c["NetworkCardIndex"]: c for c in net["NetworkCards"]}
    card = cards[net.get("DefaultNetworkCardIndex", 0)]
    gpus = t.get("GpuInfo", {}).get("Gpus", [])
    inference = t.get("InferenceAcceleratorInfo", {}).get("Accelerators", [])
    neuron = t.get("NeuronInfo", {}).get("NeuronDevices", [])
    media = t.get("MediaAcceleratorInfo", {}).get("Accelerators", [])
    accelerators = neuron or inference or media
    usage = t["SupportedUsageClasses"]
    flag = lambda value: "1" if value else "0"
    first = lambda items, key: items[0].get(key, "") if items else ""
    return [
        t["InstanceType"],
        arch,
        t["VCpuInfo"]["DefaultVCpus"],
        t["MemoryInfo"]["SizeInMiB"],
        card["MaximumNetworkInterfaces"],
        net["Ipv4AddressesPerInterface"],
        len(cards),
        net.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        sum(g["Count"] for g in gpus),
        kebab(first(gpus, "Name")),
        kebab(first(gpus, "Manufacturer")),
        gpus[0]["MemoryInfo"]["SizeInMiB"] if gpus and "MemoryInfo" in gpus[0] else 0,
        sum(a["Count"] for a in accelerators),
        kebab(first(accelerators, "Name")),
        kebab(first(accelerators, "Manufacturer") or ("aws" if neuron else "")),
        sum(d["Count"] * d["CoreInfo"]["Count"] for d in neuron),
        t.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0) if t.get("InstanceStorageInfo", {}).get("NvmeSupport") in ("required", "supported") else 0,
        t.get("Hypervisor", ""),
        flag(t["BareMetal"]),
        round(t["ProcessorInfo"].get("SustainedClockSpeedInGhz", 0) * 1000),
        kebab(t["ProcessorInfo"].get("Manufacturer", "")),
        ebs_mbps(t["EbsInfo"]),
        network_mbps(cards, net["NetworkPerformance"]),
        flag(net["EncryptionInTransitSupported"]),
        flag("on-demand" in usage),
        flag("spot" in usage),
        branches.get(t["InstanceType"], 0),
        min((c["MaximumNetworkInterfaces"] for c in cards.values() if c is not card), default=0),
        flag(t.get("NitroEnclavesSupport") == "supported"),
        flag("nested-virtualization" in t["ProcessorInfo"].get("SupportedFeatures", [])),
        t["EbsInfo"].get("MaximumEbsAttachments", 0),
        flag(t["EbsInfo"].get("AttachmentLimitType") != "dedicated"),
        flag("cluster" in t.get("PlacementGroupInfo", {}).get("SupportedStrategies", [])),
        ranges(sorted(index for index, c in cards.items() if "efa" in c.get("InterfaceTypes", []))),
    ]


def main():
    wheel, module = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(RESOURCE)
    types = json.loads(gzip.decompress(data))
    limits = (pathlib.Path(module) / LIMITS).read_text()
    branches = branch_enis(limits)
    rows = sorted(filter(None, (row(t, branches) for t in types.values())), key=lambda r: r[0])
    print("# Derived by sandbox/tools/catalogue/derive.py; do not edit.")
    print(f"# Facts of EC2's DescribeInstanceTypes as recorded in moto 5.2.5 (Apache-2.0), {RESOURCE}, sha256 {hashlib.sha256(data).hexdigest()}.")
    print(f"# branch_enis: amazon-vpc-resource-controller-k8s {pathlib.Path(module).name.split('@')[-1]} (Apache-2.0), {LIMITS}, sha256 {hashlib.sha256(limits.encode()).hexdigest()}.")
    print("# " + "\t".join(COLUMNS))
    for cells in rows:
        print("\t".join(str(c) for c in cells))


main()
