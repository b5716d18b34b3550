use karp_domain::api::{AmiFamily, Ec2NodeClassSpec};
use karp_domain::catalogue::overhead::{capacity, guessed_memory, max_pods, overhead};
use karp_domain::catalogue::{Gpu, InstanceType, NodeSettings, builtin_type};
use serde_json::{Value, json};

use crate::{amount, instance_type};

/// Settings of a class whose fields are given as users write them.
fn class(fields: &Value) -> NodeSettings {
    let mut spec = serde_json::to_value(Ec2NodeClassSpec::default()).unwrap();
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    NodeSettings::from_class(&serde_json::from_value(spec).unwrap())
}

fn of(family: &str, fields: &Value) -> NodeSettings {
    let mut all = json!({ "amiFamily": family });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    class(&all)
}

/// The figures of m5.large: 7577 MiB after the hypervisor's share; 29 pods by interfaces, so 574 MiB; 1465 MiB for 110 pods.
#[test]
fn each_family_reserves_by_its_own_rule() {
    for (family, pods, memory, storage, ipv4) in [
        ("AL2", "29", "6903Mi", "17Gi", "0"),
        ("AL2023", "29", "6903Mi", "17Gi", "0"),
        ("Custom", "29", "6903Mi", "17Gi", "0"),
        ("Bottlerocket", "29", "6903Mi", "17Gi", "0"),
        ("Windows2019", "110", "6012Mi", "44Gi", "9"),
        ("Windows2022", "110", "6012Mi", "44Gi", "9"),
        ("Windows2025", "110", "6012Mi", "44Gi", "9"),
    ] {
        let kind = instance_type("m5.large", &of(family, &json!({})));
        let there =
            ["pods", "memory", "ephemeral-storage", "vpc.amazonaws.com/PrivateIPv4Address"].map(|r| amount(&kind, r));
        assert_eq!(there, [pods, memory, storage, ipv4], "{family}");
    }
    // with maxPods 110, only families that count real pods reserve more
    for (family, memory) in [("AL2", "6903Mi"), ("AL2023", "6903Mi"), ("Custom", "6903Mi"), ("Bottlerocket", "6012Mi")]
    {
        let kind = instance_type("m5.large", &of(family, &json!({ "kubelet": { "maxPods": 110 } })));
        assert_eq!((amount(&kind, "pods"), amount(&kind, "memory")), ("110".into(), memory.into()), "{family}");
    }
}

#[test]
fn windows_nodes_say_which_build_they_run() {
    let labels = |family| {
        let kind = instance_type("m5.large", &NodeSettings::of(family));
        let value = |key: &str| kind.labels.get(key).map_or("-".to_owned(), |values| values.join(","));
        [value("kubernetes.io/os"), value("node.kubernetes.io/windows-build")]
    };
    assert_eq!(labels(AmiFamily::Al2023), ["linux", "-"]);
    assert_eq!(labels(AmiFamily::Windows2019), ["windows", "10.0.17763"]);
    assert_eq!(labels(AmiFamily::Windows2022), ["windows", "10.0.20348"]);
    assert_eq!(labels(AmiFamily::Windows2025), ["windows", "10.0.26100"]);
}

#[test]
fn reservations_and_thresholds_override_one_by_one() {
    let kubelet = |value: Value| of("AL2023", &json!({ "kubelet": value }));
    for (settings, cpu, memory, storage) in [
        (kubelet(json!({})), "1930m", "6903Mi", "17Gi"),
        (kubelet(json!({ "kubeReserved": { "cpu": "100m" } })), "1900m", "6903Mi", "17Gi"),
        (kubelet(json!({ "kubeReserved": { "memory": "1Gi" } })), "1930m", "6453Mi", "17Gi"),
        (kubelet(json!({ "kubeReserved": { "ephemeral-storage": "2Gi" } })), "1930m", "6903Mi", "16Gi"),
        (kubelet(json!({ "systemReserved": { "cpu": "30m", "memory": "203Mi" } })), "1900m", "6700Mi", "17Gi"),
        (kubelet(json!({ "evictionHard": { "memory.available": "503Mi" } })), "1930m", "6500Mi", "17Gi"),
        (kubelet(json!({ "evictionHard": { "nodefs.available": "20%" } })), "1930m", "6903Mi", "15Gi"),
        (kubelet(json!({ "evictionHard": { "nodefs.available": "100%" } })), "1930m", "6903Mi", "19Gi"),
        (kubelet(json!({ "evictionHard": { "memory.available": "100%" } })), "1930m", "7003Mi", "17Gi"),
        // a soft threshold warns; it takes nothing away
        (
            kubelet(json!({
                "evictionSoft": { "memory.available": "2Gi" }, "evictionSoftGracePeriod": { "memory.available": "1m" }
            })),
            "1930m",
            "6903Mi",
            "17Gi",
        ),
    ] {
        let kind = instance_type("m5.large", &settings);
        let there = ["cpu", "memory", "ephemeral-storage"].map(|resource| amount(&kind, resource));
        assert_eq!(there, [cpu, memory, storage], "{settings:?}");
    }
    let five_percent = kubelet(json!({ "evictionHard": { "memory.available": "5%" } }));
    let facts = builtin_type("m5.large").unwrap();
    let taken = overhead(facts, &five_percent, guessed_memory(facts, &five_percent)).get("memory").units();
    assert_eq!(taken, (574 << 20) + ((7577_i64 << 20) * 5 + 99) / 100, "a share is of the capacity, rounded up");
}

/// Figures of EKS's eni-max-pods.txt and of its max-pods calculator.
#[test]
fn pods_follow_interfaces_prefixes_and_the_kubelet() {
    let listed = |interfaces: &[(i32, i32, &str)]| {
        let each = |(card, device, kind): &(i32, i32, &str)| json!({ "networkCardIndex": card, "deviceIndex": device, "interfaceType": kind });
        json!({ "networkInterfaces": interfaces.iter().map(each).collect::<Vec<_>>() })
    };
    let reserved = |enis| NodeSettings { reserved_enis: enis, ..NodeSettings::default() };
    let prefixes = || class(&json!({ "amiFamily": "AL2023", "ipPrefixCount": 1 }));
    let kubelet = |family, value: Value| of(family, &json!({ "kubelet": value }));
    for (name, settings, pods) in [
        ("m5.large", NodeSettings::default(), 29),
        ("t3.nano", NodeSettings::default(), 4),
        ("p4d.24xlarge", NodeSettings::default(), 737),
        ("m5.large", reserved(1), 20),
        ("m5.large", reserved(3), 0),
        ("p4d.24xlarge", class(&listed(&[(0, 0, "interface"), (0, 1, "efa-only"), (1, 1, "efa-only")])), 688),
        ("m5.large", prefixes(), 110),
        ("m5.24xlarge", prefixes(), 250),
        ("t3.nano", prefixes(), 34),
        ("m4.large", prefixes(), 20),
        ("m5.large", NodeSettings { reserved_enis: 3, ..prefixes() }, 0),
        ("m5.large", kubelet("AL2023", json!({ "maxPods": 58 })), 58),
        ("m5.large", kubelet("AL2023", json!({ "podsPerCore": 4 })), 8),
        ("m5.large", kubelet("AL2023", json!({ "maxPods": 110, "podsPerCore": 20 })), 40),
        ("m5.large", kubelet("Bottlerocket", json!({ "podsPerCore": 4 })), 29),
        ("m5.large", kubelet("Windows2022", json!({ "podsPerCore": 4 })), 8),
    ] {
        assert_eq!(max_pods(builtin_type(name).unwrap(), &settings), pods, "{name} {settings:?}");
    }
    // interfaces kept from pods do not change what the bootstrap reserves
    assert_eq!(amount(&instance_type("m5.large", &reserved(1)), "memory"), "6903Mi");
}

#[test]
fn kubelets_are_told_their_pods_where_images_may_reckon_otherwise() {
    let tells = |family: &str, fields: Value| of(family, &fields).tells_pods();
    let (plain, prefixes) = (|| json!({}), || json!({ "ipPrefixCount": 1 }));
    assert!(!tells("AL2023", plain()) && tells("AL2023", prefixes()));
    assert!(tells("Bottlerocket", plain()), "its list lacks types that are newer than the image");
    assert!(!tells("Bottlerocket", json!({ "kubelet": { "maxPods": 58 } })), "the class says it");
    assert!(!tells("Windows2022", prefixes()) && !tells("Custom", prefixes()));
}

#[test]
fn pods_write_where_the_volumes_or_disks_say() {
    let mapping = |device: &str, size: Option<&str>, root: bool| {
        let ebs = size.map_or_else(|| json!({ "snapshotID": "snap-1" }), |size| json!({ "volumeSize": size }));
        json!({ "deviceName": device, "rootVolume": root, "ebs": ebs })
    };
    let with = |family: &str, mappings: &[Value]| of(family, &json!({ "blockDeviceMappings": mappings }));
    let raid0 = || of("AL2023", &json!({ "instanceStorePolicy": "RAID0" }));
    for (name, settings, bytes) in [
        ("m5.large", with("AL2023", &[mapping("/dev/xvda", Some("100Gi"), false)]), 100 << 30),
        ("m5.large", with("AL2023", &[mapping("/dev/xvdb", Some("100Gi"), false)]), 20 << 30),
        ("m5.large", with("AL2023", &[mapping("/dev/xvdb", Some("100Gi"), true)]), 100 << 30),
        ("m5.large", with("AL2023", &[mapping("/dev/xvda", None, true)]), 20 << 30),
        ("m5.large", with("AL2", &[mapping("/dev/xvda", Some("64G"), false)]), 64_000_000_000),
        (
            "m5.large",
            with(
                "Bottlerocket",
                &[mapping("/dev/xvda", Some("4Gi"), false), mapping("/dev/xvdb", Some("80Gi"), false)],
            ),
            80 << 30,
        ),
        ("m5.large", with("Windows2022", &[mapping("/dev/sda1", Some("80Gi"), false)]), 80 << 30),
        ("m5.large", with("Windows2022", &[]), 50 << 30),
        (
            "m5.large",
            with("Custom", &[mapping("/dev/sda", Some("8Gi"), false), mapping("/dev/sdz", Some("30Gi"), false)]),
            30 << 30,
        ),
        ("m5d.large", with("AL2023", &[]), 20 << 30),
        ("m5d.large", raid0(), 75_000_000_000),
        ("m5.large", raid0(), 20 << 30),
        ("m5d.large", of("Windows2022", &json!({ "instanceStorePolicy": "RAID0" })), 50 << 30),
    ] {
        let there = capacity(builtin_type(name).unwrap(), &settings, 0).get("ephemeral-storage").units();
        assert_eq!(there, bytes, "{name} {settings:?}");
    }
}

#[test]
fn devices_are_counted_under_their_makers_names() {
    let listed = class(&json!({ "networkInterfaces": [
        { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
        { "networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only" },
    ]}));
    for (name, settings, resource, count) in [
        ("g5.12xlarge", NodeSettings::default(), "nvidia.com/gpu", "4"),
        ("trn1.32xlarge", NodeSettings::default(), "aws.amazon.com/neuron", "16"),
        ("trn1.32xlarge", NodeSettings::default(), "aws.amazon.com/neuroncore", "32"),
        ("inf2.xlarge", NodeSettings::default(), "aws.amazon.com/neuroncore", "2"),
        ("p4d.24xlarge", NodeSettings::default(), "vpc.amazonaws.com/efa", "4"),
        ("p4d.24xlarge", listed, "vpc.amazonaws.com/efa", "1"),
        ("m5.large", NodeSettings::default(), "vpc.amazonaws.com/pod-eni", "9"),
        ("t3.large", NodeSettings::default(), "vpc.amazonaws.com/pod-eni", "0"),
    ] {
        assert_eq!(amount(&instance_type(name, &settings), resource), count, "{name} {resource}");
    }
    for (maker, resource) in [("habana", "habana.ai/gaudi"), ("amd", "amd.com/gpu"), ("nvidia", "nvidia.com/gpu")] {
        let mut facts = builtin_type("m5.24xlarge").unwrap().clone();
        facts.gpu = Some(Gpu { name: "x".into(), maker: maker.into(), count: 8, memory_mib: 32_768 });
        let kind = InstanceType::from_facts(&facts, &NodeSettings::default(), Vec::new());
        assert_eq!(amount(&kind, resource), "8", "{maker}");
    }
}

#[test]
fn memory_gives_way_to_the_hypervisor_and_to_huge_pages() {
    let settings = |permille| NodeSettings { vm_memory_overhead_permille: permille, ..NodeSettings::default() };
    let of = |name: &str, permille| {
        let kind = instance_type(name, &settings(permille));
        kind.capacity.get("memory").to_string()
    };
    assert_eq!([of("m5.large", 0), of("m5.large", 75), of("m5.large", 100)], ["8Gi", "7577Mi", "7372Mi"]);
    assert_eq!(of("m6g.large", 0), "8128Mi", "arm64 keeps 64 MiB for itself");
    let mut kind = instance_type("m5.large", &settings(75));
    kind.capacity.set("hugepages-2Mi", "1Gi".parse().unwrap());
    assert_eq!((amount(&kind, "memory"), amount(&kind, "hugepages-2Mi")), ("5879Mi".into(), "1Gi".into()));
    kind.capacity.set("hugepages-1Gi", "64Gi".parse().unwrap());
    assert_eq!(amount(&kind, "memory"), "0");
}
