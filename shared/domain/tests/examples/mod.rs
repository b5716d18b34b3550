//! Valid text of everything that is read, each with much of what it can say.

use serde_json::{Value, json};

use super::world::{self, class, pending, pool, with};

pub fn requirement_specs() -> Value {
    json!([{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["3"]}, {"key": "team", "operator": "NotIn", "values": ["a", "b"]},
        {"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 3}, {"key": "x/y", "operator": "DoesNotExist"}])
}

pub fn rich_pod() -> Value {
    let term = json!({"labelSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}, "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {}, "matchLabelKeys": ["app"]});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["9"]}]}]});
    with(
        pending("rich", "500m", "256Mi"),
        &[
            (
                "spec.affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": term}]}}),
            ),
            (
                "spec.topologySpreadConstraints",
                json!([{"maxSkew": 1, "minDomains": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]),
            ),
            (
                "spec.tolerations",
                json!([{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}]),
            ),
            (
                "spec.initContainers",
                json!([{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "10m", "hugepages-2Mi": "4Mi"}}}]),
            ),
            (
                "spec.containers",
                json!([{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}], "resources": {"requests": {"cpu": "1"}}}]),
            ),
            (
                "spec.volumes",
                json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "s"}}}}]),
            ),
            (
                "metadata.annotations",
                json!({"karpenter.sh/do-not-disrupt": "1h", "controller.kubernetes.io/pod-deletion-cost": "-5"}),
            ),
            ("spec.priority", json!(-7)),
        ],
    )
}

pub fn rich_pool() -> Value {
    with(
        pool("rich", requirement_specs()),
        &[
            ("spec.limits", json!({"cpu": "100", "nodes": 5})),
            (
                "spec.disruption.budgets",
                json!([{"nodes": "10%", "schedule": "0 9 * * 1-5", "duration": "8h", "reasons": ["Empty"]}, {"nodes": "3"}]),
            ),
            ("spec.disruption.consolidateAfter", json!("1m30s")),
            ("spec.template.spec.taints", json!([{"key": "a", "value": "b", "effect": "NoExecute"}])),
            ("spec.template.spec.terminationGracePeriod", json!("1h")),
            (
                "spec.template.metadata",
                json!({"labels": {"team": "a"}, "annotations": {"karp.sh/max-pod-share": "25%"}}),
            ),
            ("spec.replicas", json!(3)),
        ],
    )
}

pub fn rich_class() -> Value {
    with(
        class(),
        &[
            (
                "spec.kubelet",
                json!({"maxPods": 42, "kubeReserved": {"cpu": "90m"}, "evictionHard": {"memory.available": "5%"}, "clusterDNS": ["10.0.0.10"]}),
            ),
            (
                "spec.blockDeviceMappings",
                json!([{"deviceName": "/dev/xvda", "rootVolume": true, "ebs": {"volumeSize": "100Gi", "volumeType": "gp3", "iops": 3000}}]),
            ),
            ("spec.amiSelectorTerms", json!([{"alias": "al2023@latest"}])),
            ("spec.instanceStorePolicy", json!("RAID0")),
            ("spec.tags", json!({"a": "b"})),
        ],
    )
}

pub fn rich_overlay() -> Value {
    json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "o"}, "spec": {"requirements": requirement_specs(),
        "priceAdjustment": "-5%", "capacity": {"example.com/x": "3"}, "weight": 10}})
}

pub fn rich_buffer() -> Value {
    json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": "b", "namespace": "n"},
        "spec": {"podTemplateRef": {"name": "t"}, "replicas": 3, "limits": {"cpu": "10"}}})
}

pub fn volumes() -> Vec<Value> {
    let mut all = world::universe::storage();
    all.push(json!({"kind": "CSINode", "metadata": {"name": "n"}, "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "i", "allocatable": {"count": 25}}]}}));
    all
}

pub fn daemon_set() -> Value {
    json!({"metadata": {"name": "agent", "namespace": "kube-system"}, "spec": {"selector": {}, "template": {"spec": rich_pod()["spec"]}}})
}

pub fn limit_range() -> Value {
    json!({"metadata": {"name": "l", "namespace": "kube-system"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "64Mi"}, "max": {"cpu": "2"}}]}})
}

pub fn disruption_budget() -> Value {
    json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "maxUnavailable": "30%"},
        "status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}})
}

pub fn listing() -> Value {
    json!({"name": "x1.large", "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}], "capacity": {"cpu": "2", "memory": "8Gi"},
        "offerings": [{"zone": "a", "capacityType": "spot", "price": 0.031, "available": true}]})
}

pub fn message() -> Value {
    json!({"source": "aws.health", "detail-type": "AWS Health Event", "time": "2026-11-21T12:00:00Z", "detail": {"service": "EC2", "eventTypeCategory": "scheduledChange",
        "instance-id": "i-1", "affectedEntities": [{"entityValue": "i-0123"}]}})
}

pub fn provisioner() -> Value {
    json!({"apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "default"}, "spec": {"requirements": requirement_specs(),
        "limits": {"resources": {"cpu": "1000"}}, "ttlSecondsUntilExpired": 3600, "kubeletConfiguration": {"maxPods": 30},
        "provider": {"subnetSelector": {"a": "b"}, "securityGroupSelector": {"a": "b"}, "instanceProfile": "p"}}})
}

pub fn template() -> Value {
    json!({"apiVersion": "karpenter.k8s.aws/v1alpha1", "kind": "AWSNodeTemplate", "metadata": {"name": "default"},
        "spec": {"subnetSelector": {"aws-ids": "subnet-1,subnet-2"}, "securityGroupSelector": {"Name": "*"}, "amiFamily": "Bottlerocket",
            "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi"}}]}})
}

pub const PRICES: &str = "multiplier: 0.9\nrules:\n- types: ['m7i*.?large', c7g.large]\n  zones: [us-east-1a]\n  pricePerHour: 0.05\n- capacityTypes: [on-demand]\n  discountPercent: 28\n";
pub const NODE_CONFIG: &str =
    "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n    config:\n      maxPods: 5\n";
pub const ARCHIVE: &str = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"B\"\n\n--B\nContent-Type: text/x-shellscript; charset=\"us-ascii\"\n\n#!/bin/sh\necho a\n\n--B--\n";
