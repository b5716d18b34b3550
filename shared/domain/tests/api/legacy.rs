//! Older manifests read as today's: those of the articles that the project started from, and each rule by itself.

use karp_domain::api::legacy::{ClassInputs, Refusal, kubelet, node_class, node_pool};
use serde_json::{Value, json};

/// The Provisioner and the template of seed 003.
fn provisioner() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": { "name": "default" },
        "spec": {
            "providerRef": { "name": "default" },
            "requirements": [
                { "key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["m"] },
                { "key": "karpenter.k8s.aws/instance-cpu", "operator": "In", "values": ["4", "8"] },
                { "key": "karpenter.k8s.aws/instance-hypervisor", "operator": "In", "values": ["nitro"] },
                { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-north-1a", "eu-north-1b"] },
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }
            ],
            "limits": { "resources": { "cpu": "1000", "memory": "1000Gi" } },
            "ttlSecondsUntilExpired": 3600
        }
    })
}

fn template() -> Value {
    json!({
        "apiVersion": "karpenter.k8s.aws/v1alpha1",
        "kind": "AWSNodeTemplate",
        "metadata": { "name": "default" },
        "spec": {
            "securityGroupSelector": { "karpenter.sh/discovery": "prod" },
            "subnetSelector": { "karpenter.sh/discovery": "prod" },
            "tags": { "karpenter.sh/discovery": "prod" }
        }
    })
}

/// The Provisioner of seed 004, with everything inline.
fn inline() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": { "name": "default" },
        "spec": {
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
            "limits": { "resources": { "cpu": 1000 } },
            "provider": {
                "subnetSelector": { "karpenter.sh/discovery": "prod" },
                "securityGroupSelector": { "karpenter.sh/discovery": "prod" },
                "instanceProfile": "KarpenterNodeInstanceProfile-prod"
            },
            "ttlSecondsAfterEmpty": 30
        }
    })
}

fn with(mut manifest: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    manifest.pointer_mut(parent).unwrap()[name] = value;
    manifest
}

fn spec(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()["spec"].take()
}

fn paths(refusals: &[Refusal]) -> Vec<&str> {
    refusals.iter().map(|refusal| refusal.path.as_str()).collect()
}

fn profile() -> ClassInputs {
    ClassInputs { instance_profile: Some("KarpenterNodeInstanceProfile-prod".into()), ..ClassInputs::default() }
}

#[test]
fn a_provisioner_becomes_a_pool_that_means_the_same() {
    let pool = node_pool(&provisioner()).unwrap();
    let spec = spec(&pool.object);
    assert_eq!(pool.object.metadata.name.as_deref(), Some("default"));
    assert_eq!(spec["limits"], json!({ "cpu": "1k", "memory": "1000Gi" }));
    assert_eq!(spec["disruption"]["consolidationPolicy"], "WhenEmpty");
    assert_eq!(spec["disruption"]["consolidateAfter"], "Never");
    let template = &spec["template"]["spec"];
    assert_eq!(template["expireAfter"], "3600s");
    assert_eq!(
        template["nodeClassRef"],
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" })
    );
    let keys: Vec<&str> =
        template["requirements"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    // capacity and category were said; architecture and system were defaults
    assert_eq!(keys[5..], ["kubernetes.io/arch", "kubernetes.io/os"]);
    assert!(pool.notes.iter().any(|note| note.contains("kubernetes.io/arch In amd64")), "{:?}", pool.notes);
}

#[test]
fn an_inline_provider_becomes_a_pool_and_a_class() {
    let pool = spec(&node_pool(&inline()).unwrap().object);
    assert_eq!(pool["disruption"]["consolidationPolicy"], "WhenEmpty");
    assert_eq!(pool["disruption"]["consolidateAfter"], "30s");
    assert_eq!(pool["template"]["spec"]["expireAfter"], "Never");
    let requirements = pool["template"]["spec"]["requirements"].as_array().unwrap();
    assert!(requirements.contains(&json!({
        "key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]
    })));

    let class = node_class(&inline(), &ClassInputs::default()).unwrap();
    assert_eq!(class.object.metadata.name.as_deref(), Some("default"));
    let class = spec(&class.object);
    assert_eq!(class["instanceProfile"], "KarpenterNodeInstanceProfile-prod");
    assert_eq!(class["amiSelectorTerms"], json!([{ "alias": "al2@latest" }]));
    assert_eq!(class["subnetSelectorTerms"], json!([{ "tags": { "karpenter.sh/discovery": "prod" } }]));
    assert_eq!(class["metadataOptions"]["httpPutResponseHopLimit"], 2);
}

#[test]
fn a_template_needs_a_profile_from_somewhere() {
    let refused = node_class(&template(), &ClassInputs::default()).unwrap_err();
    assert_eq!(paths(&refused), ["spec.instanceProfile"]);
    assert!(refused[0].message.contains("aws.defaultInstanceProfile"));
    let by_profile = spec(&node_class(&template(), &profile()).unwrap().object);
    assert_eq!(by_profile["instanceProfile"], "KarpenterNodeInstanceProfile-prod");
    let role = ClassInputs { role: Some("KarpenterNodeRole-prod".into()), ..profile() };
    let by_role = spec(&node_class(&template(), &role).unwrap().object);
    assert_eq!((&by_role["role"], &by_role["instanceProfile"]), (&json!("KarpenterNodeRole-prod"), &Value::Null));
}

#[test]
fn selectors_become_terms() {
    let class = |selector: Value| {
        let manifest = with(template(), "/spec/subnetSelector", selector);
        node_class(&manifest, &profile()).map(|class| spec(&class.object)["subnetSelectorTerms"].take())
    };
    let ids = class(json!({ "aws-ids": "subnet-1, subnet-2" })).unwrap();
    assert_eq!(ids, json!([{ "id": "subnet-1" }, { "id": "subnet-2" }]));
    let tags = class(json!({ "Name": "a,b", "tier": "*" })).unwrap();
    assert_eq!(tags, json!([{ "tags": { "Name": "a", "tier": "*" } }, { "tags": { "Name": "b", "tier": "*" } }]));
    let mixed = class(json!({ "aws-ids": "subnet-1", "Name": "a" })).unwrap_err();
    assert_eq!(paths(&mixed), ["spec.subnetSelector"]);

    let images = with(template(), "/spec/amiSelector", json!({ "aws::name": "mine-*", "aws::owners": "self" }));
    let class = spec(&node_class(&images, &profile()).unwrap().object);
    assert_eq!(class["amiSelectorTerms"], json!([{ "name": "mine-*", "owner": "self" }]));
    assert_eq!(class["amiFamily"], "AL2");
}

#[test]
fn images_of_ubuntu_keep_the_disk_that_was_their_familys() {
    let images = with(template(), "/spec/amiSelector", json!({ "aws-ids": "ami-1" }));
    let ubuntu = with(images, "/spec/amiFamily", json!("Ubuntu"));
    let class = spec(&node_class(&ubuntu, &profile()).unwrap().object);
    assert_eq!(class["amiFamily"], "AL2");
    let ebs = json!({ "encrypted": true, "volumeSize": "20Gi", "volumeType": "gp3" });
    assert_eq!(class["blockDeviceMappings"], json!([{ "deviceName": "/dev/sda1", "rootVolume": true, "ebs": ebs }]));
    let own = json!([{ "deviceName": "/dev/sda1", "ebs": { "volumeSize": "50Gi" } }]);
    let sized = with(ubuntu, "/spec/blockDeviceMappings", own.clone());
    assert_eq!(spec(&node_class(&sized, &profile()).unwrap().object)["blockDeviceMappings"], own);
}

#[test]
fn what_has_no_counterpart_is_refused_at_its_path() {
    let launch = with(template(), "/spec/launchTemplate", json!("mine"));
    assert_eq!(paths(&node_class(&launch, &profile()).unwrap_err()), ["spec.launchTemplate"]);
    let ubuntu = with(template(), "/spec/amiFamily", json!("Ubuntu"));
    assert!(paths(&node_class(&ubuntu, &profile()).unwrap_err()).contains(&"spec.amiFamily"));
    let misspelt = with(provisioner(), "/spec/requirement", json!([]));
    assert_eq!(paths(&node_pool(&misspelt).unwrap_err()), ["spec.requirement"]);
    let both = with(
        with(inline(), "/spec/providerRef", json!({ "name": "x" })),
        "/spec/consolidation",
        json!({ "enabled": true }),
    );
    assert_eq!(paths(&node_pool(&both).unwrap_err()), ["spec.provider", "spec.ttlSecondsAfterEmpty"]);
    let wrong = with(provisioner(), "/spec/weight", json!("heavy"));
    assert_eq!(paths(&node_pool(&wrong).unwrap_err()), ["spec.weight"]);
    let other = json!({ "apiVersion": "v1", "kind": "Pod" });
    assert_eq!(paths(&node_pool(&other).unwrap_err()), ["kind"]);
    assert_eq!(paths(&node_class(&other, &profile()).unwrap_err()), ["kind"]);
    // what today's API would refuse is found too
    let heavy = with(provisioner(), "/spec/weight", json!(500));
    assert_eq!(paths(&node_pool(&heavy).unwrap_err()), ["spec.weight"]);
}

#[test]
fn old_label_names_are_translated() {
    let labels = json!({ "beta.kubernetes.io/arch": "arm64" });
    let old = with(provisioner(), "/spec/labels", json!({ "team": "a" }));
    let old = with(
        old,
        "/spec/requirements",
        json!([
            { "key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["eu-north-1a"] },
            { "key": "beta.kubernetes.io/arch", "operator": "In", "values": [labels["beta.kubernetes.io/arch"]] }
        ]),
    );
    let spec = spec(&node_pool(&old).unwrap().object);
    let requirements = &spec["template"]["spec"]["requirements"];
    assert_eq!(requirements[0]["key"], "topology.kubernetes.io/zone");
    assert_eq!(requirements[1]["key"], "kubernetes.io/arch");
    assert_eq!(spec["template"]["metadata"]["labels"], json!({ "team": "a" }));
}

#[test]
fn v1beta1_is_read_too() {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1beta1",
        "kind": "NodePool",
        "metadata": { "name": "beta", "creationTimestamp": null },
        "spec": {
            "template": {
                "metadata": { "labels": { "team": "a" } },
                "spec": {
                    "nodeClassRef": { "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": "beta" },
                    "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }],
                    "kubelet": { "maxPods": 40, "containerRuntime": "containerd" },
                    "resources": {}
                }
            },
            "disruption": { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "240h", "budgets": [{ "nodes": "20%" }] },
            "limits": { "cpu": 100 },
            "weight": 10
        },
        "status": { "resources": {} }
    });
    let converted = spec(&node_pool(&pool).unwrap().object);
    assert_eq!(converted["disruption"]["consolidationPolicy"], "WhenEmptyOrUnderutilized");
    assert_eq!(converted["disruption"]["budgets"], json!([{ "nodes": "20%" }]));
    assert_eq!(converted["template"]["spec"]["expireAfter"], "240h");
    assert_eq!(converted["template"]["spec"]["nodeClassRef"]["group"], "karpenter.k8s.aws");

    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1beta1",
        "kind": "EC2NodeClass",
        "metadata": { "name": "beta" },
        "spec": {
            "amiFamily": "Bottlerocket",
            "role": "KarpenterNodeRole-prod",
            "subnetSelectorTerms": [{ "id": "subnet-1" }],
            "securityGroupSelectorTerms": [{ "name": "nodes" }],
            "metadataOptions": { "httpPutResponseHopLimit": 1, "httpTokens": "required" }
        }
    });
    let inputs = ClassInputs { kubelet: kubelet(&pool).unwrap(), ..ClassInputs::default() };
    let class = spec(&node_class(&class, &inputs).unwrap().object);
    assert_eq!(class["amiSelectorTerms"], json!([{ "alias": "bottlerocket@latest" }]));
    assert_eq!(class["kubelet"], json!({ "maxPods": 40 }));
    assert_eq!(class["metadataOptions"]["httpPutResponseHopLimit"], 1);
}

#[test]
fn todays_objects_come_back_as_they_are() {
    let pool = serde_json::to_value(node_pool(&provisioner()).unwrap().object).unwrap();
    let again = node_pool(&pool).unwrap();
    assert_eq!(serde_json::to_value(again.object).unwrap(), pool);
    assert!(again.notes.is_empty());
}
