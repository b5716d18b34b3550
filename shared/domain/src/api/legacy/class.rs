//! AWSNodeTemplate v1alpha1, the inline `provider` of a Provisioner, and EC2NodeClass v1beta1 as EC2NodeClass.

use serde_json::{Map, Value};

use super::ClassInputs;
use super::fields::Fields;
use super::selector::{self, Selected};
use crate::api::{
    AmiFamily, AmiSelectorTerm, BlockDevice, BlockDeviceMapping, Ec2NodeClass, Ec2NodeClassSpec, MetadataOptions,
    OptionalList, SecurityGroupSelectorTerm, StringMap, SubnetSelectorTerm, VolumeType,
};

/// The hop limit that the older APIs gave by default; today's default is 1.
const OLD_HOP_LIMIT: i64 = 2;

/// Reads an AWSNodeTemplate.
pub fn template(fields: &mut Fields, inputs: &ClassInputs) -> Ec2NodeClass {
    let name = fields.name().or_else(|| inputs.name.clone()).unwrap_or_default();
    let spec = fields.inside("spec", |spec| alpha_spec(spec, inputs));
    Ec2NodeClass::new(&name, spec)
}

/// Reads the `provider` of a Provisioner; the class is called as the Provisioner is.
pub fn inline(fields: &mut Fields, inputs: &ClassInputs) -> Ec2NodeClass {
    let own = fields.name();
    let name = inputs.name.clone().or(own).unwrap_or_default();
    let spec = fields.inside("spec", |spec| {
        if !spec.has("provider") {
            spec.refuse(
                "provider",
                "this Provisioner has none inline: convert the AWSNodeTemplate of its `providerRef`.",
            );
        }
        // the rest belongs to the pool, which is read apart
        spec.ignore(&[
            "annotations",
            "labels",
            "taints",
            "startupTaints",
            "requirements",
            "kubeletConfiguration",
            "providerRef",
            "ttlSecondsAfterEmpty",
            "ttlSecondsUntilExpired",
            "limits",
            "weight",
            "consolidation",
        ]);
        spec.inside("provider", |provider| {
            provider.ignore(&["apiVersion", "kind"]);
            alpha_spec(provider, inputs)
        })
    });
    Ec2NodeClass::new(&name, spec)
}

fn alpha_spec(fields: &mut Fields, inputs: &ClassInputs) -> Ec2NodeClassSpec {
    for name in ["launchTemplate", "launchTemplateName"] {
        if fields.has(name) {
            fields.ignore(&[name]);
            fields.refuse(
                name,
                "launch templates of one's own are not used any more: put its image, user data and disks into `ami_selector_terms`, \
                 `user_data` and `block_device_mappings`.",
            );
        }
    }
    let subnets = selected(fields, "subnetSelector").subnets();
    let groups = selected(fields, "securityGroupSelector").security_groups();
    let asks_images = fields.has("amiSelector");
    let images = selected(fields, "amiSelector");
    let images = if asks_images { images.amis() } else { Vec::new() };
    let mut spec = common(fields, inputs, images, "AL2");
    spec.subnet_selector_terms = subnets;
    spec.security_group_selector_terms = groups;
    identity(fields, &mut spec, None, inputs);
    spec
}

fn selected(fields: &mut Fields, name: &str) -> Selected {
    let map: StringMap = fields.get(name).unwrap_or_default();
    let selected = selector::read(&map);
    if selected.is_mixed() {
        fields.refuse(name, "ids together with tags or names cannot be asked for any more: keep the ids alone.");
    }
    selected
}

/// Reads an EC2NodeClass v1beta1.
pub fn beta(fields: &mut Fields, inputs: &ClassInputs) -> Ec2NodeClass {
    let name = fields.name().or_else(|| inputs.name.clone()).unwrap_or_default();
    let spec = fields.inside("spec", |spec| {
        let subnets: Vec<SubnetSelectorTerm> = spec.get("subnetSelectorTerms").unwrap_or_default();
        let groups: Vec<SecurityGroupSelectorTerm> = spec.get("securityGroupSelectorTerms").unwrap_or_default();
        let images: Vec<AmiSelectorTerm> = spec.get("amiSelectorTerms").unwrap_or_default();
        let role: Option<String> = spec.get("role");
        let mut class = common(spec, inputs, images, "AL2");
        class.associate_public_ip_address = spec.get("associatePublicIPAddress");
        class.instance_store_policy = spec.get("instanceStorePolicy");
        class.subnet_selector_terms = subnets;
        class.security_group_selector_terms = groups;
        identity(spec, &mut class, role, inputs);
        class
    });
    Ec2NodeClass::new(&name, spec)
}

/// Reads what all older classes have in common.
fn common(
    fields: &mut Fields,
    inputs: &ClassInputs,
    images: Vec<AmiSelectorTerm>,
    default_family: &str,
) -> Ec2NodeClassSpec {
    let said: Option<String> = fields.get("amiFamily");
    let (ami_family, ami_selector_terms) = family(fields, said.as_deref().unwrap_or(default_family), images);
    Ec2NodeClassSpec {
        ami_family,
        ami_selector_terms,
        user_data: fields.get("userData"),
        tags: fields.get("tags").unwrap_or_default(),
        block_device_mappings: disks(fields, said.as_deref()),
        detailed_monitoring: fields.get("detailedMonitoring"),
        metadata_options: metadata(fields),
        context: fields.get("context"),
        kubelet: inputs.kubelet.clone(),
        ..Ec2NodeClassSpec::default()
    }
}

/// Reads the disks. Ubuntu's were those of its family, and the family that takes its place has others.
fn disks(fields: &mut Fields, family: Option<&str>) -> OptionalList<BlockDeviceMapping> {
    let said: OptionalList<BlockDeviceMapping> = fields.get("blockDeviceMappings").unwrap_or_default();
    if family != Some("Ubuntu") || !said.is_empty() {
        return said;
    }
    fields.note("Ubuntu's disk (/dev/sda1, 20Gi gp3, encrypted) was the family's default, and is written out.");
    let ebs = BlockDevice {
        encrypted: Some(true),
        volume_size: Some("20Gi".to_owned()),
        volume_type: Some(VolumeType::Gp3),
        ..BlockDevice::default()
    };
    let root =
        BlockDeviceMapping { device_name: Some("/dev/sda1".to_owned()), ebs: Some(ebs), root_volume: Some(true) };
    vec![root].into()
}

/// Gives the family and the terms: without terms, an alias stands for the family's newest image, as it was before.
fn family(fields: &mut Fields, name: &str, images: Vec<AmiSelectorTerm>) -> (Option<AmiFamily>, Vec<AmiSelectorTerm>) {
    let (family, alias) = match name {
        "AL2" => (AmiFamily::Al2, Some("al2")),
        "AL2023" => (AmiFamily::Al2023, Some("al2023")),
        "Bottlerocket" => (AmiFamily::Bottlerocket, Some("bottlerocket")),
        "Windows2019" => (AmiFamily::Windows2019, Some("windows2019")),
        "Windows2022" => (AmiFamily::Windows2022, Some("windows2022")),
        "Custom" => {
            fields.note(
                "User data of Custom must register the node with the taint karpenter.sh/unregistered:NoExecute now.",
            );
            (AmiFamily::Custom, None)
        }
        "Ubuntu" if !images.is_empty() => {
            fields.note("Ubuntu is no family any more: the images boot as AL2's do (EKS bootstrap script), so `amiFamily` is AL2.");
            (AmiFamily::Al2, None)
        }
        "Ubuntu" => {
            fields.refuse("amiFamily", "Ubuntu is no family any more: select its images by an AMI selector.");
            return (None, images);
        }
        other => {
            fields.refuse("amiFamily", format!("there is no family {other:?}."));
            return (None, images);
        }
    };
    match (images.is_empty(), alias) {
        (false, _) => (Some(family), images),
        (true, Some(alias)) => {
            if alias == "al2" {
                fields
                    .note("AL2 was the default family. EKS has no AL2 images from Kubernetes 1.33 on: move to al2023.");
            }
            (None, vec![AmiSelectorTerm { alias: Some(format!("{alias}@latest")), ..AmiSelectorTerm::default() }])
        }
        (true, None) => {
            fields.refuse("amiFamily", "Custom needs an AMI selector.");
            (Some(family), images)
        }
    }
}

fn metadata(fields: &mut Fields) -> MetadataOptions {
    let said: Map<String, Value> = fields.get("metadataOptions").unwrap_or_default();
    let options: Option<MetadataOptions> = fields.get("metadataOptions");
    let mut options = options.unwrap_or_default();
    if !said.contains_key("httpPutResponseHopLimit") {
        options.http_put_response_hop_limit = OLD_HOP_LIMIT;
        fields.note(format!(
            "The metadata hop limit was {OLD_HOP_LIMIT} by default and is written out; 1 keeps pods away from the node's role."
        ));
    }
    options
}

/// Gives the nodes their role or profile: the manifest's own, else what the inputs say.
fn identity(fields: &mut Fields, spec: &mut Ec2NodeClassSpec, role: Option<String>, inputs: &ClassInputs) {
    let own: Option<String> = fields.get("instanceProfile");
    if let Some(role) = role.or_else(|| inputs.role.clone()) {
        if own.is_some() {
            fields.note("The role replaces the instance profile: karp makes the profile itself.");
        }
        spec.role = Some(role);
        return;
    }
    spec.instance_profile = own.or_else(|| inputs.instance_profile.clone());
    if spec.instance_profile.is_none() {
        fields.refuse(
            "instanceProfile",
            "neither a role nor an instance profile is known: Karpenter took `aws.defaultInstanceProfile` of its settings; give it, or the \
             nodes' role, as an input.",
        );
    }
}
