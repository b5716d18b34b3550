//! Objects that set every attribute there is: applied, they leave nothing to do, and an import reads all of it back. An import leaves out what is as
//! the API has it by default, so that no value here is.

use serde_json::Value;

use crate::stand::{AwsAuth, Cluster};
use crate::tofu::without;
use crate::{CRDS, PROVIDER};

const FULL: &str = r##"
resource "karp_node_class" "full" {
  name             = "NAME"
  annotations      = { team = "a" }
  labels           = { team = "a" }
  instance_profile = "p"
  ami_family       = "AL2023"
  ami_selector_terms = [
    { tags = { team = "*" }, owner = "self" },
    { name = "image-*", owner = "amazon" },
    { id = "ami-0123456789abcdef0" },
    { ssm_parameter = "/images/one" },
  ]
  subnet_selector_terms               = [{ tags = { tier = "private" } }, { id = "subnet-1" }]
  security_group_selector_terms       = [{ tags = { tier = "*" } }, { name = "nodes" }, { id = "sg-1" }]
  capacity_reservation_selector_terms = [{ tags = { team = "a" }, owner_id = "111122223333", instance_match_criteria = "targeted" }, { id = "cr-0123456789abcdef0" }]
  placement_group_selector            = { name = "close" }
  associate_public_ip_address         = false
  detailed_monitoring                 = true
  instance_store_policy               = "RAID0"
  ip_prefix_count                     = 2
  context                             = "reserved"
  user_data                           = "#!/bin/bash\necho full\n"
  tags                                = { team = "a" }
  metadata_options = {
    http_endpoint               = "disabled"
    http_protocol_ipv6          = "enabled"
    http_put_response_hop_limit = 2
    http_tokens                 = "optional"
  }
  block_device_mappings = [
    {
      device_name = "/dev/xvda"
      root_volume = true
      ebs = {
        delete_on_termination      = true
        encrypted                  = true
        iops                       = 3000
        kms_key_id                 = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
        snapshot_id                = "snap-0123456789abcdef0"
        throughput                 = 125
        volume_initialization_rate = 100
        volume_size                = "20Gi"
        volume_type                = "gp3"
      }
    },
    { device_name = "/dev/xvdb", ebs = { volume_size = "100Gi" } },
  ]
  network_interfaces = [
    { network_card_index = 0, device_index = 0, interface_type = "interface" },
    { network_card_index = 1, device_index = 1, interface_type = "efa-only" },
  ]
  connection_tracking = { tcp_established_timeout = 600, udp_stream_timeout = 120, udp_timeout = 60 }
  cpu_options         = { nested_virtualization = "enabled" }
  enclave_options     = { enabled = false }
  kubelet = {
    cluster_dns                       = ["10.0.0.10"]
    cpu_cfs_quota                     = true
    eviction_hard                     = { "memory.available" = "5%", "nodefs.available" = "10%" }
    eviction_soft                     = { "memory.available" = "10%" }
    eviction_soft_grace_period        = { "memory.available" = "1m0s" }
    eviction_max_pod_grace_period     = 60
    image_gc_high_threshold_percent   = 85
    image_gc_low_threshold_percent    = 80
    kube_reserved                     = { cpu = "200m", memory = "100Mi", "ephemeral-storage" = "3Gi" }
    system_reserved                   = { cpu = "100m", memory = "100Mi", "ephemeral-storage" = "1Gi" }
    max_pods                          = 58
    pods_per_core                     = 4
    more_json                         = jsonencode({ registryBurst = 20, topologyManagerPolicy = "restricted" })
  }
  adopt           = false
  force_conflicts = false
  wait_for_ready  = false
  teardown        = "demo"
  timeouts        = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_node_pool" "full" {
  name        = "NAME"
  annotations = { team = "a" }
  labels      = { team = "a" }
  weight      = 10
  limits      = { cpu = "1000", memory = "1000Gi", nodes = "10", "nvidia.com/gpu" = "4" }
  template = {
    labels         = { team = "a" }
    annotations    = { note = "b" }
    node_class_ref = { group = "karpenter.k8s.aws", kind = "EC2NodeClass", name = "NAME" }
    requirements = [
      { key = "karpenter.k8s.aws/instance-family", operator = "In", values = ["m7i", "m7g", "c7i"], min_values = 2 },
      { key = "karpenter.k8s.aws/instance-cpu", operator = "Gte", values = ["4"] },
      { key = "karpenter.k8s.aws/instance-local-nvme", operator = "DoesNotExist" },
      { key = "kubernetes.io/arch", operator = "Exists" },
    ]
    taints                   = [{ key = "team", value = "a", effect = "NoSchedule" }, { key = "gone", effect = "NoExecute", time_added = "2026-01-31T12:00:00Z" }]
    startup_taints           = [{ key = "node.example.com/agent", effect = "NoSchedule" }]
    expire_after             = "480h"
    termination_grace_period = "1h0m0s"
  }
  disruption = {
    consolidation_policy = "WhenEmpty"
    consolidate_after    = "30s"
    budgets = [
      { nodes = "10%" },
      { nodes = "0", reasons = ["Drifted", "Underutilized"], schedule = "0 9 * * mon-fri", duration = "8h" },
    ]
  }
  drain_on_destroy = true
  adopt            = false
  force_conflicts  = false
  wait_for_ready   = false
  teardown         = "demo"
  timeouts         = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_node_class" "other" {
  name                          = "NAME-other"
  role                          = "nodes"
  ami_selector_terms            = [{ alias = "bottlerocket@latest" }]
  subnet_selector_terms         = [{ tags = { tier = "private" } }]
  security_group_selector_terms = [{ tags = { tier = "private" } }]
  placement_group_selector      = { id = "pg-0123456789abcdef0" }
  wait_for_ready                = false
}
resource "karp_node_overlay" "adjusted" {
  name             = "NAME-adjusted"
  annotations      = { "kubernetes.io/description" = "of the contract" }
  labels           = { team = "a" }
  requirements     = [{ key = "karpenter.k8s.aws/instance-family", operator = "NotIn", values = ["m7i"] }]
  price_adjustment = "-5%"
  capacity         = { "example.com/device" = "2" }
  weight           = 10
  adopt            = false
  force_conflicts  = false
  wait_for_ready   = false
  timeouts         = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_crds" "this" {
  adopt           = false
  allow_downgrade = false
  keep_on_destroy = true
  timeouts        = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_aws_auth_entry" "this" {
  role_arn = "arn:aws:iam::111122223333:role/NAME"
  username = "system:node:{{SessionName}}"
  groups   = ["system:bootstrappers", "system:nodes", "eks:kube-proxy-windows"]
  adopt    = false
  timeouts = { create = "1m", read = "1m", update = "1m", delete = "1m" }
}
resource "karp_node_pool" "static" {
  name     = "NAME-static"
  replicas = 0
  template = {
    node_class_ref = { name = "NAME" }
    requirements   = []
  }
  wait_for_ready = false
}
resource "karp_node_overlay" "priced" {
  name         = "NAME-priced"
  requirements = [{ key = "karpenter.k8s.aws/instance-cpu", operator = "Gt", values = ["8"] }]
  price        = "0.42"
}
"##;

/// What only a configuration says.
const OWN: [&str; 7] =
    ["adopt", "allow_downgrade", "drain_on_destroy", "force_conflicts", "teardown", "timeouts", "wait_for_ready"];

#[test]
fn what_sets_every_attribute_is_applied_and_read_back_whole() {
    let Some(cluster) = Cluster::find("full") else { return };
    let name = cluster.unique("full");
    cluster.stand(&format!("{PROVIDER}{CRDS}")).apply();
    let aws_auth = AwsAuth::with(&cluster, "[]\n");
    let config = format!("{PROVIDER}{}", FULL.replace("NAME", &name));
    let stand = cluster.stand(&config);
    stand.apply();
    stand.assert_empty_plan();

    let addresses = [
        ("karp_node_class.full", name.clone()),
        ("karp_node_class.other", format!("{name}-other")),
        ("karp_node_pool.full", name.clone()),
        ("karp_node_pool.static", format!("{name}-static")),
        ("karp_node_overlay.adjusted", format!("{name}-adjusted")),
        ("karp_node_overlay.priced", format!("{name}-priced")),
        ("karp_aws_auth_entry.this", format!("arn:aws:iam::111122223333:role/{name}")),
        ("karp_crds.this", "crds".to_owned()),
    ];
    // The identity of an object is its name; `main` and `entries` import by the id.
    let import = |(to, id): &(&str, String)| {
        let by_identity = to.starts_with("karp_node_");
        let told = if by_identity { format!("identity = {{ name = {id:?} }}") } else { format!("id = {id:?}") };
        format!("import {{\n  to = {to}\n  {told}\n}}\n")
    };
    let imports = addresses.iter().map(import).collect::<String>();
    assert!(aws_auth.roles().contains("SessionName"), "{}", aws_auth.roles());
    let importer = cluster.stand(&format!("{}{imports}", without(&config, &OWN)));
    importer.apply().assert_imports_alone();
    importer.assert_empty_plan();

    stand.destroy();
    assert_eq!(cluster.get(&["nodepool", &name]), Value::Null);
    assert_eq!(cluster.get(&["ec2nodeclass", &name]), Value::Null);
}
