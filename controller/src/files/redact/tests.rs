//! What redaction keeps decides as before, and nothing else is kept.

use karp_domain::cluster;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "hunter2";

fn spec() -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": SECRET, "command": [SECRET], "args": [SECRET],
            "env": [{"name": SECRET, "value": SECRET}], "envFrom": [{"secretRef": {"name": SECRET}}],
            "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}],
            "livenessProbe": {"exec": {"command": [SECRET]}},
            "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}})
    };
    let mut sidecar = container("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    json!({
        "containers": [container("main")], "initContainers": [sidecar],
        "serviceAccountName": SECRET, "imagePullSecrets": [{"name": SECRET}], "hostAliases": [{"ip": SECRET}],
        "nodeSelector": {"kubernetes.io/arch": "arm64"}, "priority": 7, "overhead": {"cpu": "10m"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}],
        "volumes": [{"name": "a", "secret": {"secretName": SECRET}}, {"name": "b", "configMap": {"name": SECRET}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "ephemeral": {"volumeClaimTemplate": {"metadata": {"annotations": {"a": SECRET}},
                "spec": {"storageClassName": "gp3"}}}}],
    })
}

fn meta() -> Value {
    json!({"name": "x", "namespace": "n", "uid": "u", "labels": {"app": "x"}, "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": SECRET, "example.com/token": SECRET,
        "notkarpenter.sh/token": SECRET, "controller.kubernetes.io/pod-deletion-cost": "5", "karpenter.sh/do-not-disrupt": "true"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "r"}]})
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn keeps_no_secret(object: &impl Serialize) {
    let text = serde_json::to_string(object).expect("JSON");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn a_pod_is_decided_on_as_before_and_tells_nothing_else() {
    let pod: core::Pod =
        typed(json!({"metadata": meta(), "spec": spec(), "status": {"phase": "Pending", "message": SECRET,
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SECRET}]}}));
    let redacted = pod.clone().redacted();
    keeps_no_secret(&redacted);
    assert_eq!(cluster::Pod::from_kube(&redacted), cluster::Pod::from_kube(&pod));
    let mut spec = spec();
    spec["nodeName"] = json!("n1");
    let own = json!([{"name": "main", "ready": true, "restartCount": 0, "image": SECRET, "imageID": SECRET,
        "state": {"waiting": {"message": SECRET}}, "resources": {"requests": {"cpu": "7"}}}]);
    let resized: core::Pod = typed(json!({"metadata": meta(), "spec": spec, "status": {"containerStatuses": own}}));
    let redacted = resized.clone().redacted();
    keeps_no_secret(&redacted);
    let read = cluster::Pod::from_kube(&redacted).expect("a pod");
    assert!(
        read.shape.requests.get("cpu") > karp_domain::quantity::Quantity::from_units(6),
        "{:?}",
        read.shape.requests
    );
    assert_eq!(Ok(read), cluster::Pod::from_kube(&resized));
    assert_eq!(redacted.clone().redacted(), redacted);
}

#[test]
fn other_kinds_are_decided_on_as_before_and_tell_nothing_else() {
    let daemons: apps::DaemonSet =
        typed(json!({"metadata": meta(), "spec": {"selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": meta(), "spec": spec()}}}));
    keeps_no_secret(&daemons.clone().redacted());
    assert_eq!(cluster::DaemonSet::from_kube(&daemons.clone().redacted()), cluster::DaemonSet::from_kube(&daemons));

    let node: core::Node = typed(json!({"metadata": meta(), "spec": {"providerID": "aws:///z/i-1", "podCIDR": SECRET,
        "taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"},
        "images": [{"names": [SECRET]}], "conditions": [{"type": "Ready", "status": "True", "message": SECRET}]}}));
    let redacted = node.clone().redacted();
    keeps_no_secret(&redacted);
    let read =
        |node: &core::Node| cluster::Node::from_kube(node).map(|read| cluster::Node { annotations: [].into(), ..read });
    assert_eq!(read(&redacted), read(&node));

    let volume: core::PersistentVolume = typed(json!({"metadata": meta(), "spec": {"storageClassName": "gp3",
        "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "volumeAttributes": {"a": SECRET},
            "nodePublishSecretRef": {"name": SECRET}},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]}]}]}}}}));
    keeps_no_secret(&volume.clone().redacted());
    assert_eq!(cluster::Volume::from_kube(&volume.clone().redacted()), cluster::Volume::from_kube(&volume));

    let attachment: storage::VolumeAttachment = typed(json!({"metadata": meta(),
        "spec": {"attacher": "ebs.csi.aws.com", "nodeName": "n1",
            "source": {"persistentVolumeName": "pv", "inlineVolumeSpec": {"csi": {"driver": SECRET, "volumeHandle": SECRET}}}},
        "status": {"attached": true, "attachmentMetadata": {"a": SECRET}}}));
    let redacted = attachment.redacted();
    keeps_no_secret(&redacted);
    let source = redacted.spec.source.persistent_volume_name;
    assert_eq!((redacted.spec.node_name.as_str(), source.as_deref()), ("n1", Some("pv")));

    let conditions = status()["conditions"].clone();
    let budget: policy::PodDisruptionBudget = typed(
        json!({"metadata": meta(), "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"currentHealthy": 2, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 2, "conditions": conditions}}),
    );
    keeps_no_secret(&budget.clone().redacted());
    assert_eq!(cluster::PodBudget::from_kube(&budget.clone().redacted()), cluster::PodBudget::from_kube(&budget));

    let class: storage::StorageClass = typed(json!({"metadata": meta(), "provisioner": "ebs.csi.aws.com",
        "parameters": {"key": SECRET}, "volumeBindingMode": "WaitForFirstConsumer"}));
    keeps_no_secret(&class.clone().redacted());
    assert_eq!(cluster::StorageClass::from_kube(&class.clone().redacted()), cluster::StorageClass::from_kube(&class));

    let class: Ec2NodeClass =
        typed(json!({"metadata": meta(), "spec": {"subnetSelectorTerms": [], "securityGroupSelectorTerms": [],
        "amiSelectorTerms": [], "userData": SECRET}, "status": status()}));
    keeps_no_secret(&class.redacted());
}

fn status() -> Value {
    json!({"conditions": [{"type": "Ready", "status": "False", "reason": "NotReady", "message": SECRET,
        "lastTransitionTime": "2026-11-21T12:00:00Z"}]})
}

/// A number tells nothing else, and may decide: a daemon set's count of its templates, by which its newest pod is found.
#[test]
fn annotations_that_count_are_kept_as_numbers_only() {
    let kept = |key: &str, value: &str| {
        let meta = json!({"name": "x", "namespace": "n", "uid": "u", "annotations": {key: value}});
        let daemons: apps::DaemonSet = typed(json!({"metadata": meta, "spec": {"selector": {}, "template": {}}}));
        daemons.redacted().metadata.annotations.and_then(|all| all.get(key).cloned())
    };
    for key in ["deprecated.daemonset.template.generation", "controller.kubernetes.io/pod-deletion-cost"] {
        assert_eq!(kept(key, "12").as_deref(), Some("12"), "{key}");
        for text in [SECRET, "", "12 hunter2", "1.5", "99999999999999999999"] {
            assert_eq!(kept(key, text), None, "{key}: {text}");
        }
    }

    let set = json!({"metadata": {"name": "agent", "namespace": "n", "uid": "ds",
        "annotations": {"deprecated.daemonset.template.generation": "2"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c"}]}}}});
    let pod = |generation: &str, created: &str, cpu: &str| -> core::Pod {
        typed(
            json!({"metadata": {"name": format!("agent-{generation}"), "namespace": "n", "creationTimestamp": created,
            "labels": {"pod-template-generation": generation},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "ds"}]},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}),
        )
    };
    // the old template's pod is the younger one: its node came while the rollout was elsewhere
    let pods = [pod("1", "2026-11-21T11:00:00Z", "7"), pod("2", "2026-11-21T10:00:00Z", "250m")];
    let read = |set: &apps::DaemonSet, pods: &[core::Pod]| {
        let pods: Vec<_> = pods.iter().map(|pod| cluster::Pod::from_kube(pod).expect("a pod").into()).collect();
        cluster::DaemonSet::admitted(set, &[], &pods).expect("a daemon set").shape.requests.get("cpu").to_string()
    };
    let set: apps::DaemonSet = typed(set);
    assert_eq!(read(&set, &pods), "250m");
    assert_eq!(read(&set.redacted(), &pods.map(Redact::redacted)), "250m");
}

#[test]
fn karpenters_kinds_are_decided_on_as_before_and_tell_nothing_else() {
    let reference = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    let pool: NodePool = typed(json!({"metadata": meta(), "status": status(), "spec": {"template": {
        "metadata": {"annotations": {"example.com/token": SECRET, "karp.sh/kept": "yes"}},
        "spec": {"requirements": [], "nodeClassRef": reference}}}}));
    let redacted = pool.clone().redacted();
    keeps_no_secret(&redacted);
    let mut before = cluster::Pool::from_kube(&pool).expect("a pool");
    before.annotations.retain(|key, _| key.starts_with("karp"));
    let after = cluster::Pool::from_kube(&redacted).expect("a pool");
    // what is left of the template has a hash of its own: it is compared with that of nodes that are planned by it
    before.hash = after.hash.clone();
    assert_eq!(after, before);
    let mut status = status();
    status["providerID"] = json!("aws:///z/i-1");
    let claim: NodeClaim = typed(json!({"metadata": meta(), "status": status,
        "spec": {"requirements": [], "nodeClassRef": reference}}));
    keeps_no_secret(&claim.clone().redacted());
    let read = |claim: &NodeClaim| {
        let mut read = cluster::Claim::from_kube(claim).expect("a claim");
        silent(&mut read.conditions);
        cluster::Claim { annotations: [].into(), ..read }
    };
    assert_eq!(read(&claim.clone().redacted()), read(&claim));
    let map: core::ConfigMap =
        typed(json!({"metadata": meta(), "data": {"a": SECRET}, "binaryData": {"a": "aHVudGVyMg=="}}));
    let redacted = map.redacted();
    assert_eq!((redacted.data, redacted.binary_data), (None, None));
    let own: core::ConfigMap = typed(json!({"metadata": {"name": "karp-prices"},
        "binaryData": {"prices.v2.json.gz": "AAAA", "other": "aHVudGVyMg=="}}));
    let kept = own.redacted().binary_data.expect("prices");
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["prices.v2.json.gz"]);
}

#[test]
fn what_buffers_refer_to_is_decided_on_as_before_and_tells_nothing_else() {
    let buffer = |reference: Value| -> CapacityBuffer {
        let mut spec = json!({"replicas": 2, "percentage": 50, "limits": {"cpu": "10"}});
        spec.as_object_mut().expect("a spec").extend(reference.as_object().expect("a reference").clone());
        typed(json!({"metadata": meta(), "spec": spec, "status": status()}))
    };
    let template = json!({"metadata": meta(), "spec": spec()});
    let read = |object: &CapacityBuffer, template: Option<&core::PodTemplateSpec>, scale: Option<i32>| {
        cluster::Buffer::from_kube(object, cluster::Referred { template, scale }, &[]).expect("a buffer")
    };
    let by_template = buffer(json!({"podTemplateRef": {"name": "t"}}));
    keeps_no_secret(&by_template.clone().redacted());
    let whole: core::PodTemplate = typed(json!({"metadata": meta(), "template": template}));
    let kept = whole.clone().redacted();
    keeps_no_secret(&kept);
    assert_eq!(
        read(&by_template.clone().redacted(), kept.template.as_ref(), None),
        read(&by_template, whole.template.as_ref(), None)
    );

    let by_workload = buffer(json!({"scalableRef": {"kind": "Deployment", "name": "x"}}));
    let scaled = json!({"replicas": 7, "selector": {"matchLabels": {"app": "x"}}, "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data", "annotations": {"a": SECRET}}, "spec": {"storageClassName": "gp3"}}]});
    let workload = json!({"metadata": meta(), "spec": scaled, "status": {"conditions": [
        {"type": "Available", "status": "True", "message": SECRET}]}});
    let before = read(&by_workload, Some(&typed(template)), Some(7));
    assert_eq!(before.replicas, 4);
    let deployment = typed::<apps::Deployment>(workload.clone()).redacted();
    keeps_no_secret(&deployment);
    let of = deployment.spec.expect("a spec");
    assert_eq!(read(&by_workload, Some(&of.template), of.replicas), before);
    let replica_set = typed::<apps::ReplicaSet>(workload.clone()).redacted();
    keeps_no_secret(&replica_set);
    let of = replica_set.spec.expect("a spec");
    assert_eq!(read(&by_workload, of.template.as_ref(), of.replicas), before);
    let mut replicated = workload;
    replicated["spec"]["serviceName"] = json!(SECRET);
    let stateful_set = typed::<apps::StatefulSet>(replicated).redacted();
    keeps_no_secret(&stateful_set);
    let of = stateful_set.spec.expect("a spec");
    assert_eq!(read(&by_workload, Some(&of.template), of.replicas), before);
    assert_eq!(of.volume_claim_templates.expect("claims")[0].metadata.name.as_deref(), Some("data"));
}
