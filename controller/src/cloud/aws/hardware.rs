//! What nodes of a class make of EC2's instance types: which of them boot, and what those hold. The controller and the tool ask here.

use std::collections::BTreeMap;

use karp_aws::placement_groups::PlacementGroup;
use karp_domain::api::{Ami, AmiFamily, Ec2NodeClassSpec, labels};
use karp_domain::catalogue::{Demands, InstanceFacts, InstanceType, NodeSettings, Offering, SeenMemory};

use super::class;

/// What a class says of its nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hardware {
    /// The family of its images; none where nobody can tell.
    pub family: Option<AmiFamily>,
    /// Its images, the first that fits is booted; none where nobody has looked them up yet.
    pub images: Option<Vec<Ami>>,
    /// The placement group that its nodes are in; none where it selects none or nobody has looked it up yet.
    pub group: Option<PlacementGroup>,
    /// What it asks of the hardware.
    pub demands: Demands,
    /// What of a node is for its pods.
    pub settings: NodeSettings,
}

impl Hardware {
    /// Reads what a class says itself, without the images that were found for it.
    pub fn from_class(spec: &Ec2NodeClassSpec) -> Self {
        Hardware {
            family: class::family(spec).ok(),
            images: None,
            group: None,
            demands: Demands::from_class(spec),
            settings: NodeSettings::from_class(spec),
        }
    }

    /// Makes a type as nodes of the class have it, with the ways to buy it that `sold` answers; nothing when they cannot be of that type.
    pub fn of(
        &self,
        facts: &InstanceFacts,
        memory: &SeenMemory,
        sold: impl FnOnce() -> Vec<Offering>,
    ) -> Option<InstanceType> {
        if !self.demands.are_met_by(facts) || self.family.is_some_and(|family| !class::boots(family, facts)) {
            return None;
        }
        let node = self.family.map_or_else(|| facts.labels(), |family| class::node_labels(family, facts));
        let seen = match &self.images {
            Some(images) => memory.of(facts, &class::image_for(images, |label| node.get(label).cloned())?.id),
            None => None,
        };
        let mut made = InstanceType::measured(facts, &self.settings, seen, sold());
        add_image_labels(&mut made, &node);
        if let Some(group) = &self.group {
            add_group_labels(&mut made, group);
        }
        Some(made)
    }
}

/// What the image makes of the hardware.
fn add_image_labels(made: &mut InstanceType, node: &BTreeMap<String, String>) {
    for label in [labels::OS, labels::WINDOWS_BUILD] {
        if let Some(value) = node.get(label) {
            made.labels.insert(label.into(), vec![value.as_str().into()]);
        }
    }
}

/// What the placement group says of a node: which it is, and in which partition it may be.
fn add_group_labels(made: &mut InstanceType, group: &PlacementGroup) {
    made.labels.insert(labels::PLACEMENT_GROUP_ID.into(), vec![group.id.as_str().into()]);
    if group.partitions > 0 {
        let all = (1..=group.partitions).map(|number| number.to_string().into());
        made.labels.insert(labels::PLACEMENT_GROUP_PARTITION.into(), all.collect());
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::builtin_type;
    use serde_json::json;

    use super::*;

    fn hardware(more: &serde_json::Value) -> Hardware {
        let mut spec = json!({"amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"id": "subnet-1"}], "securityGroupSelectorTerms": [{"id": "sg-1"}]});
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        Hardware::from_class(&serde_json::from_value(spec).expect("a spec"))
    }

    fn made(hardware: &Hardware, name: &str) -> Option<InstanceType> {
        hardware.of(builtin_type(name).expect("a type"), &SeenMemory::default(), Vec::new)
    }

    #[test]
    fn a_type_is_what_the_family_boots() {
        let al2023 = hardware(&json!({}));
        assert!(made(&al2023, "m7g.large").is_some() && made(&al2023, "a1.large").is_none());
        assert!(made(&Hardware::default(), "a1.large").is_some(), "nobody can tell");
        let windows = hardware(&json!({"amiSelectorTerms": [{"alias": "windows2022@latest"}]}));
        let labels = made(&windows, "m7i.large").expect("a type").labels;
        assert_eq!((&*labels[labels::OS][0], &*labels[labels::WINDOWS_BUILD][0]), ("windows", "10.0.20348"));
        assert!(made(&windows, "m7g.large").is_none(), "Windows is built for amd64");
    }

    #[test]
    fn nodes_are_in_the_classes_placement_group() {
        let labels = |strategy: &str, partitions| {
            let group = PlacementGroup {
                id: "pg-1".into(),
                name: "g".into(),
                strategy: strategy.into(),
                partitions,
                available: true,
            };
            let hardware = Hardware { group: Some(group), ..hardware(&json!({})) };
            let labels = made(&hardware, "m7i.large").expect("a type").labels;
            let of = |key: &str| labels.get(key).map(|values| values.join(" "));
            (of(labels::PLACEMENT_GROUP_ID), of(labels::PLACEMENT_GROUP_PARTITION))
        };
        assert_eq!(labels("cluster", 0), (Some("pg-1".to_owned()), None));
        assert_eq!(labels("partition", 3), (Some("pg-1".to_owned()), Some("1 2 3".to_owned())));
        let plain = made(&hardware(&json!({})), "m7i.large").expect("a type");
        assert!(!plain.labels.contains_key(labels::PLACEMENT_GROUP_ID));
    }

    #[test]
    fn images_that_were_found_say_which_types_boot() {
        let image: Ami = serde_json::from_value(json!({"id": "ami-1",
            "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}))
        .expect("an image");
        let arm = Hardware { images: Some(vec![image]), ..hardware(&json!({})) };
        assert!(made(&arm, "m7g.large").is_some() && made(&arm, "m7i.large").is_none());
        let none = Hardware { images: Some(Vec::new()), ..hardware(&json!({})) };
        assert!(made(&none, "m7g.large").is_none());
    }
}
