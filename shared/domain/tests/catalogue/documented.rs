use std::collections::BTreeMap;

use karp_domain::catalogue::NodeSettings;
use karp_domain::quantity::Quantity;

use crate::{amount, instance_type, shared};

/// Types on which we decide otherwise than Karpenter's page, each with the field and the rule behind it.
const EXCEPTIONS: &[(&str, &str)] = &[
    // EC2 publishes a baseline of 28.125 Gbit/s; the page rounds it to 28.12 first
    ("i4i.12xlarge", "karpenter.k8s.aws/instance-network-bandwidth"),
    // the VPC resource controller's limits give it 9 branch interfaces; the page was made before they did
    ("i4i.large", "vpc.amazonaws.com/pod-eni"),
];

#[test]
fn a_sample_of_types_is_as_documented() {
    for line in include_str!("documented.tsv").lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        let kind = instance_type(cells[0], &NodeSettings::default());
        let resources = [
            ("cpu", cells[1]),
            ("memory", cells[2]),
            ("pods", cells[3]),
            ("vpc.amazonaws.com/pod-eni", cells[4]),
            ("vpc.amazonaws.com/efa", cells[5]),
            ("nvidia.com/gpu", cells[8]),
            ("aws.amazon.com/neuron", cells[9]),
            ("aws.amazon.com/neuroncore", cells[10]),
            ("ephemeral-storage", "17Gi"),
        ];
        for (resource, expected) in resources {
            let there = amount(&kind, resource);
            assert_eq!(if there == "0" { "-" } else { &there }, expected, "{} {resource}", cells[0]);
        }
        for (label, expected) in [("network-bandwidth", cells[6]), ("ebs-bandwidth", cells[7])] {
            let values = kind.labels.get(&*format!("karpenter.k8s.aws/instance-{label}"));
            assert_eq!(values.map_or("-", |values| &values[0]), expected, "{} {label}", cells[0]);
        }
    }
}

/// The fields of one type that differ from what the page says, in both directions.
fn differences(name: &str, expected: &serde_json::Value) -> Vec<String> {
    let kind = instance_type(name, &NodeSettings::default());
    let strings = |value: &serde_json::Value| -> BTreeMap<String, String> {
        serde_json::from_value(value.clone()).expect("strings by name")
    };
    let (labels, allocatable) = (strings(&expected["labels"]), strings(&expected["allocatable"]));
    let mut wrong = Vec::new();
    for (resource, text) in &allocatable {
        if kind.allocatable().get(resource) != text.parse::<Quantity>().expect("a quantity") {
            wrong.push(resource.clone());
        }
    }
    let unsaid = kind.allocatable();
    wrong.extend(unsaid.iter().filter(|(name, _)| !allocatable.contains_key(*name)).map(|(name, _)| name.to_owned()));
    for (label, text) in &labels {
        if kind.labels.get(&**label).is_none_or(|values| *values != [text.as_str().into()]) {
            wrong.push(label.clone());
        }
    }
    // the page is about nodes of default tenancy, so it leaves the choice out
    let said = |label: &str| labels.contains_key(label) || label == "karpenter.k8s.aws/instance-tenancy";
    wrong.extend(kind.labels.keys().filter(|label| !said(label)).map(ToString::to_string));
    wrong
}

#[test]
fn every_documented_type_is_equal_but_for_named_exceptions() {
    let Some(expected) = shared("data/instance-types-expected.json") else { return };
    let expected = expected.as_object().expect("types by name");
    let wrong = expected
        .iter()
        .flat_map(|(name, it)| differences(name, it).into_iter().map(move |field| (name.as_str(), field)));
    let unexplained: Vec<_> = wrong.filter(|(name, field)| !EXCEPTIONS.contains(&(name, field))).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    let named: Vec<_> = EXCEPTIONS.iter().filter(|(name, _)| differences(name, &expected[*name]).is_empty()).collect();
    assert!(named.is_empty(), "no longer exceptions: {named:?}");
    println!("{} of {} types are equal", expected.len() - EXCEPTIONS.len(), expected.len());
    assert!(expected.len() >= 181 && EXCEPTIONS.len() <= 2);
}
