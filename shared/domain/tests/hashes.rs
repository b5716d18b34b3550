//! Static drift hashes against the values of Go's hashstructure 2.0.2 on structs of Karpenter's shape.

use karp_domain::api::{Ec2NodeClassSpec, NodePoolSpec, hash};
use serde_json::{Value, json};

fn pool(value: Value) -> String {
    hash::node_pool(&serde_json::from_value::<NodePoolSpec>(value).expect("a pool"))
}

fn class(value: Value) -> String {
    hash::node_class(&serde_json::from_value::<Ec2NodeClassSpec>(value).expect("a class"))
}

#[test]
fn pools_hash_as_in_go() {
    let reference = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let plain = json!({ "template": { "spec": { "requirements": [], "nodeClassRef": reference } } });
    assert_eq!(pool(plain), "6821555240594823858");
    let rich = json!({ "template": {
        "metadata": { "labels": { "team": "a", "tier": "web" }, "annotations": { "note": "x" } },
        "spec": {
            "taints": [{ "key": "a", "value": "b", "effect": "NoSchedule" }, { "key": "c", "effect": "NoExecute" }],
            "startupTaints": [{ "key": "s", "effect": "NoSchedule" }],
            "requirements": [], "nodeClassRef": reference, "terminationGracePeriod": "90s", "expireAfter": "Never"
        }
    } });
    assert_eq!(pool(rich), "7702019876896261660");
}

#[test]
fn classes_hash_as_in_go() {
    let with = |fields: Value| {
        let mut spec = json!({ "amiSelectorTerms": [], "subnetSelectorTerms": [], "securityGroupSelectorTerms": [] });
        spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        class(spec)
    };
    assert_eq!(
        with(json!({ "role": "node", "amiSelectorTerms": [{ "alias": "al2023@latest" }] })),
        "8045578535805691233"
    );
    let rich = json!({
        "amiFamily": "Bottlerocket", "instanceProfile": "profile", "userData": "#!/bin/sh", "tags": { "a": "b", "c": "d" },
        "detailedMonitoring": true, "associatePublicIPAddress": false, "instanceStorePolicy": "RAID0",
        "blockDeviceMappings": [
            { "deviceName": "/dev/xvda", "rootVolume": true, "ebs": { "encrypted": true, "volumeSize": "20Gi", "volumeType": "gp3",
                "iops": 3000, "volumeInitializationRate": 100 } },
            { "deviceName": "/dev/xvdb" }
        ]
    });
    assert_eq!(with(rich), "877767910493053161");
}
