//! No input panics, seen from the bytes: everything that reads text is given arbitrary bytes, valid text with bytes damaged, and text made
//! to cost time or stack. It answers or refuses, and what it answers can be used. (`robust.rs` damages objects field by field and solves.)

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::storage::v1 as storage;
use karp_domain::api::{
    self, AmiFamily, CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, RequirementSpec,
};
use karp_domain::catalogue::{
    CapacityType, Catalogue, InstanceType, Listing, NodeSettings, Overlay, Price, PriceChange, Threshold, builtin_type,
};
use karp_domain::cluster::{
    Claim, DaemonSet, LimitRange, Node, Pod, PodBudget, Pool, Reason, Share, StorageClass, Volume, VolumeClaim,
    Volumes, Window, admitted, allowed,
};
use karp_domain::price_file::PriceFile;
use karp_domain::quantity::Quantity;
use karp_domain::requirement::{Requirement, Requirements, Undefined, hint};
use karp_domain::resources::Resources;
use karp_domain::taint::Taint;
use karp_domain::user_data::{Bootstrap, ClusterFacts, render};
use karp_domain::{interruption, lifecycle};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::deep;
use crate::examples::{
    ARCHIVE, NODE_CONFIG, PRICES, daemon_set, disruption_budget, limit_range, listing, message, provisioner,
    requirement_specs, rich_buffer, rich_class, rich_overlay, rich_pod, rich_pool, template, volumes,
};
use crate::world::{self, at, catalogue, class, node, pending};

/// Something that reads text, with examples of what it likes to read.
struct Reader {
    valid: Vec<String>,
    read: fn(&str),
}

static READERS: LazyLock<Vec<Reader>> = LazyLock::new(|| {
    let json = |all: Vec<Value>| all.iter().map(Value::to_string).collect::<Vec<_>>();
    let text = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    vec![
        Reader { valid: text(&["1500m", "-3.25Gi", "+1e-9", "12E", "0.000000001n", "5e+3"]), read: quantity },
        Reader { valid: json(vec![json!({"cpu": "1", "memory": 5, "nvidia.com/gpu": "1"})]), read: resources },
        Reader { valid: json(vec![requirement_specs()]), read: requirements },
        Reader { valid: text(&["0 9 * * MON-FRI", "*/5 1-4,7 ? JAN 0", "@every 1h30m", "@weekly"]), read: schedule },
        Reader {
            valid: text(&["10%", "0", "300", "1h30m15s", "Never", "1.5h", "100Mi", "+5%", "-0.01"]),
            read: figures,
        },
        Reader { valid: json(vec![pending("a", "1", "1Gi"), rich_pod()]), read: pod },
        Reader { valid: json(vec![rich_pool()]), read: node_pool },
        Reader {
            valid: json(node("n", "p", "m7i.large", "us-east-1a", CapacityType::Spot).into()),
            read: node_and_claim,
        },
        Reader { valid: json(vec![class(), rich_class()]), read: node_class },
        Reader { valid: json(vec![rich_overlay(), rich_buffer()]), read: other_kinds },
        Reader { valid: json(volumes()), read: volume },
        Reader { valid: json(vec![daemon_set(), limit_range(), disruption_budget()]), read: owners },
        Reader { valid: text(&[PRICES, r#"{"multiplier": 0.9}"#]), read: prices },
        Reader { valid: json(vec![listing()]), read: instance_types },
        Reader { valid: json(vec![message()]), read: messages },
        Reader { valid: json(vec![provisioner(), template()]), read: legacy },
        Reader {
            valid: text(&[NODE_CONFIG, ARCHIVE, "[settings.kubernetes]\nmax-pods = 5\n", "#!/bin/sh\n"]),
            read: user_data,
        },
    ]
});

fn parse<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

fn quantity(text: &str) {
    if let Ok(amount) = text.parse::<Quantity>() {
        assert_eq!(amount.to_string().parse::<Quantity>().as_ref(), Ok(&amount), "{text}");
        let _ = (amount.millis(), amount.units(), amount.as_f64(), amount.times(-7), -amount);
    }
}

fn resources(text: &str) {
    let lists: Option<Resources> = parse(text);
    if let Some(list) = lists {
        assert_eq!(parse(&serde_json::to_string(&list).unwrap()), Some(list.clone()));
        let _ = (list.plus(&list), list.minus(&list), list.fits(&list), list.to_api());
    }
}

fn requirements(text: &str) {
    let Some(all) = parse::<Vec<RequirementSpec>>(text).and_then(|specs| api::requirements(&specs).ok()) else {
        return;
    };
    assert_eq!(api::requirements(&api::requirement_specs(&all)), Ok(all.clone()));
    let labels = all.settled_labels();
    let _ = (all.match_labels(&labels), all.to_string());
    let other: Requirements = all.iter().skip(1).cloned().collect();
    for (one, wanted) in [(&all, &other), (&other, &all)] {
        let _ = one.compatible(wanted, Undefined::WellKnownAllowed).map_err(|problem| problem.to_string());
        let _ = hint::key(text, one.iter().map(Requirement::key));
    }
    let catalogue = &*SMALL;
    let (types, market) = catalogue.select(&all);
    let _ = catalogue.ranked(&types, market);
}

static SMALL: LazyLock<Catalogue> = LazyLock::new(|| catalogue(&["m7i.large", "c6g.large"]));

fn schedule(text: &str) {
    let window = Window { schedule: text.into(), duration: SignedDuration::from_hours(2) };
    for now in [world::NOW, "9999-12-30T00:00:00Z", "-009999-01-03T00:00:00Z"] {
        let _ = window.is_open(at(now)).map_err(|problem| problem.to_string());
    }
}

fn figures(text: &str) {
    let share = Share::parse(text);
    for total in [0, 1, 7, u32::MAX] {
        assert!(!matches!(share, Share::Percent(_)) || share.of(total) <= total);
    }
    let _ = (api::duration(text), api::go_duration(text), Threshold::parse(text), text.parse::<CapacityType>());
    if let Ok(change) = text.parse::<PriceChange>() {
        for price in [0, 1, u64::MAX] {
            let _ = change.of(Price::from_nano_dollars(price));
        }
    }
}

fn pod(text: &str) {
    let Some(Ok(pod)) = parse(text).map(|pod: core::Pod| Pod::from_kube(&pod)) else { return };
    let _ =
        (pod.is_provisionable(), pod.is_reschedulable(), pod.is_protected(at(world::NOW)), pod.eviction_cost_milli());
    let _ = pod.shape.alternatives.iter().map(ToString::to_string).collect::<String>();
    let _ = Volumes::default().places(&pod, |_| true).map_err(|(_, problem)| problem.to_string());
}

fn node_pool(text: &str) {
    let Some(object) = parse::<NodePool>(text) else { return };
    let _ = api::hash::node_pool(&object.spec);
    let Ok(pool) = Pool::from_kube(&object).map_err(|problem| problem.to_string()) else { return };
    for reason in [Reason::Empty, Reason::Drifted, Reason::Underutilized] {
        let _ = allowed(&pool.budgets, reason, 7, at(world::NOW));
    }
    let _ = SMALL.select(&pool.requirements);
}

fn node_and_claim(text: &str) {
    let kube = parse::<core::Node>(text);
    let node = kube.as_ref().and_then(|node| Node::from_kube(node).map_err(|problem| problem.to_string()).ok());
    let Some(object) = parse::<NodeClaim>(text) else { return };
    let _ = Claim::from_kube(&object).map_err(|problem| problem.to_string());
    let _ = lifecycle::next(&object, node.as_ref(), Some(SignedDuration::from_secs(30)), at(world::NOW));
    if let Some(kube) = &kube {
        let _ = (lifecycle::adopt(&object, kube), lifecycle::open(kube));
    }
}

fn node_class(text: &str) {
    let Some(class) = parse::<Ec2NodeClass>(text) else { return };
    let _ = api::hash::node_class(&class.spec, api::hash::NodeClassVersion::V6, text);
    let settings = NodeSettings::from_class(&class.spec);
    let types =
        ["m7i.large", "g5.xlarge"].map(|name| InstanceType::from_facts(builtin_type(name).unwrap(), &settings, vec![]));
    let _ = types.map(|kind| kind.allocatable());
}

fn other_kinds(text: &str) {
    let _ = parse::<CapacityBuffer>(text);
    let Some(overlay) = parse::<NodeOverlay>(text) else { return };
    let change = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<PriceChange>().ok());
    let read = Overlay {
        name: "o".into(),
        requirements: api::requirements(&overlay.spec.requirements).unwrap_or_default(),
        weight: overlay.spec.weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(0),
        price: change(&overlay.spec.price).or(change(&overlay.spec.price_adjustment)),
        capacity: overlay.spec.capacity.unwrap_or_default(),
    };
    let _ = SMALL.overlaid(&Requirements::new(), &[read]);
}

fn volume(text: &str) {
    let mut all = Volumes::default();
    let read = parse::<core::PersistentVolume>(text).and_then(|volume| Volume::from_kube(&volume).ok());
    all.volumes.extend(read);
    all.claims.extend(parse(text).map(|claim| VolumeClaim::from_kube(&claim)));
    all.classes.extend(parse::<storage::StorageClass>(text).and_then(|class| StorageClass::from_kube(&class).ok()));
    if let Some(node) = parse(text) {
        all.add_csi_node(&node);
    }
    let mut pod =
        Pod::from_kube(&serde_json::from_value(world::pending("p", "1", "1Gi")).expect("a pod")).expect("a pod");
    for key in all.claims.keys() {
        pod.key.namespace = key.namespace.clone();
        pod.claims = vec![karp_domain::cluster::ClaimRef::Named(key.name.clone())];
        for stays in [true, false] {
            let _ = all.places(&pod, |_| stays).map_err(|(_, problem)| problem.to_string());
        }
    }
}

fn owners(text: &str) {
    let range = parse(text).and_then(|range| LimitRange::from_kube(&range).ok());
    let ranges: Vec<Arc<LimitRange>> = range.into_iter().map(Arc::new).collect();
    let spec: core::PodSpec = serde_json::from_value(rich_pod()["spec"].clone()).unwrap();
    let _ = admitted(&spec, "kube-system", &ranges);
    if let Some(set) = parse::<apps::DaemonSet>(text) {
        let _ = DaemonSet::admitted(&set, &ranges, &[]).map_err(|problem| problem.to_string());
    }
    if let Some(budget) = parse::<policy::PodDisruptionBudget>(text) {
        let _ = PodBudget::from_kube(&budget).map_err(|problem| problem.to_string());
    }
}

fn prices(text: &str) {
    let Ok(file) = PriceFile::parse(text).map_err(|problem| problem.to_string()) else { return };
    for price in [0, 1, 96_000_000, u64::MAX] {
        let _ = file.price("m7i-flex.2xlarge", "us-east-1a", CapacityType::Spot, Price::from_nano_dollars(price));
    }
}

fn instance_types(text: &str) {
    let Some(listing) = parse::<Listing>(text) else { return };
    let Ok(kind) = InstanceType::try_from(&listing).map_err(|problem| problem.to_string()) else { return };
    let _ = (kind.allocatable(), kind.cheapest(), Listing::from(&kind));
    let all = Catalogue::new(vec![kind]);
    let _ = all.ranked(&all.all(), karp_domain::catalogue::Market::ANY);
}

fn messages(text: &str) {
    let message = interruption::parse(text);
    let _ = (message.kind(), message.notices().len());
}

fn legacy(text: &str) {
    let Some(manifest) = parse::<Value>(text) else { return };
    let _ = api::legacy::kubelet(&manifest);
    let refusals = |all: Vec<api::legacy::Refusal>| all.iter().map(ToString::to_string).collect::<String>();
    let _ = api::legacy::node_pool(&manifest).map_err(refusals);
    let _ = api::legacy::node_class(&manifest, &api::legacy::ClassInputs::default()).map_err(refusals);
}

fn user_data(text: &str) {
    let cluster = ClusterFacts {
        name: "alpha".into(),
        endpoint: "https://alpha.example".into(),
        certificate_authority: "Q0E=".into(),
        service_cidr: Some("10.100.0.0/16".into()),
    };
    let told = || BTreeMap::from([("team".to_owned(), text.chars().take(40).collect::<String>())]);
    let taints =
        vec![Taint::new("team", text.lines().next().unwrap_or(""), karp_domain::taint::TaintEffect::NoSchedule)];
    for family in
        [AmiFamily::Al2, AmiFamily::Al2023, AmiFamily::Bottlerocket, AmiFamily::Windows2022, AmiFamily::Custom]
    {
        let own = Bootstrap { cluster: cluster.clone(), custom: Some(text.to_owned()), ..Bootstrap::default() };
        let _ = render(family, &own).map_err(|problem| problem.to_string());
        let odd =
            Bootstrap { cluster: cluster.clone(), labels: told(), taints: taints.clone(), ..Bootstrap::default() };
        let _ = render(family, &odd).map_err(|problem| problem.to_string());
    }
}

/// Bytes as noise, as text, and as what looks like JSON.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        any::<String>().prop_map(String::into_bytes),
        "[\\[\\]{}:,\"a-z0-9. \\n-]{0,60}".prop_map(String::into_bytes),
    ]
}

/// One wound: where, how, how long, and what is put there.
type Wound = (Index, u8, usize, Vec<u8>);

fn wounds() -> impl Strategy<Value = Vec<Wound>> {
    let token = prop::sample::select(TOKENS).prop_map(|text| text.as_bytes().to_vec());
    let put = prop_oneof![token, prop::collection::vec(any::<u8>(), 1..4)];
    prop::collection::vec((any::<Index>(), any::<u8>(), 1_usize..20, put), 1..6)
}

const TOKENS: &[&str] = &[
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "9223372036854775807",
    "\\ud800",
    "\u{202e}",
    "%",
    "0",
    "é",
    "*",
    "\n",
    "\0",
    "true",
    "''",
    "1e60",
    "-9999999999h",
    "---",
    "&a",
    "*a",
    "<<",
    "!!binary",
];

fn wounded(valid: &str, wounds: &[Wound]) -> String {
    let mut all = valid.as_bytes().to_vec();
    for (place, how, length, put) in wounds {
        let from = place.index(all.len() + 1);
        let to = (from + length).min(all.len());
        match how % 4 {
            0 => drop(all.splice(from..from, put.iter().copied())),
            1 => drop(all.drain(from..to)),
            2 => drop(all.splice(from..to, put.iter().copied())),
            _ => {
                let copy = all[from..to].to_vec();
                all.splice(to..to, copy);
            }
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

proptest! {
    #![proptest_config(deep::cases(1000))]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in bytes()) {
        let text = String::from_utf8_lossy(&bytes);
        READERS.iter().for_each(|reader| (reader.read)(&text));
    }

    #[test]
    fn damaged_text_is_read_or_refused(which in any::<Index>(), wounds in wounds()) {
        for reader in &*READERS {
            (reader.read)(&wounded(which.get(&reader.valid[..]).as_str(), &wounds));
        }
    }

    #[test]
    fn patterns_of_prices_match_as_their_expression_does(pattern in "[ab*?]{0,7}", text in "[ab]{0,9}") {
        let file = PriceFile::parse(&format!("rules: [{{types: ['{pattern}'], pricePerHour: 1}}]")).unwrap();
        let (_, given) = file.price(&text, "z", CapacityType::Spot, Price::ZERO);
        prop_assert_eq!(given, matches(pattern.as_bytes(), text.as_bytes()), "{} {}", pattern, text);
    }
}

/// The rule of the pattern, by the letter.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|from| matches(rest, &text[from..])),
        [wanted, rest @ ..] => {
            text.split_first().is_some_and(|(has, text)| (*wanted == b'?' || wanted == has) && matches(rest, text))
        }
    }
}

proptest! {
    #![proptest_config(deep::cases(25))]

    #[test]
    fn damaged_objects_of_every_kind_are_judged_offline(which in any::<Index>(), wounds in wounds()) {
        type Judge = fn(&Value) -> Vec<api::validate::Violation>;
        let kinds: [(Vec<Value>, Judge); 5] = [
            (vec![rich_pool()], api::validate::node_pool),
            (node("n", "p", "m7i.large", "us-east-1a", CapacityType::Spot).into(), api::validate::node_claim),
            (vec![class(), rich_class()], api::validate::node_class),
            (vec![rich_overlay()], api::validate::node_overlay),
            (vec![rich_buffer()], api::validate::capacity_buffer),
        ];
        for (valid, judge) in kinds {
            if let Some(object) = parse::<Value>(&wounded(&which.get(&valid).to_string(), &wounds)) {
                judge(&object).iter().for_each(|violation| drop(violation.to_string()));
            }
        }
    }
}

/// Text that grows when it is read, or that asks for a stack as deep as it is long.
#[test]
fn text_made_to_cost_time_or_stack_is_refused_soon() {
    let many = 50_000;
    let bomb: String = (1..30).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |all, n| {
        all + &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", "))
    });
    let stars = format!("rules: [{{types: ['{}b'], pricePerHour: 1}}]", "*a".repeat(2_000));
    let nested = (0..3_000).fold(String::new(), |all, n| {
        all + &format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"B{n}\"\n\n--B{n}\n")
    });
    let texts = [
        "[".repeat(many),
        "{\"a\":".repeat(many),
        format!("a = {}", "[".repeat(many)),
        format!("a = {}", "{a=".repeat(many)),
        format!("[{}]", "a.".repeat(many) + "a"),
        "- ".repeat(many),
        "? ".repeat(many),
        "9".repeat(many),
        format!("@every {}", "1h".repeat(many)),
        format!("{} * * * *", "0,".repeat(many)),
        bomb,
        stars,
        nested,
    ];
    for text in &texts {
        READERS.iter().for_each(|reader| (reader.read)(text));
    }
    let long = "a".repeat(5_000);
    let file = PriceFile::parse(&texts[11]).unwrap();
    assert!(!file.price(&long, "z", CapacityType::Spot, Price::ZERO).1);
}

/// A reader that refuses its own examples would make the properties above prove nothing.
#[test]
fn the_examples_can_be_read() {
    assert!(Pod::from_kube(&parse(&rich_pod().to_string()).unwrap()).is_ok());
    assert!(Pool::from_kube(&parse(&rich_pool().to_string()).unwrap()).is_ok());
    assert!(parse::<Ec2NodeClass>(&rich_class().to_string()).is_some());
    assert!(parse::<NodeOverlay>(&rich_overlay().to_string()).is_some());
    assert!(parse::<CapacityBuffer>(&rich_buffer().to_string()).is_some());
    assert!(InstanceType::try_from(&parse::<Listing>(&listing().to_string()).unwrap()).is_ok());
    assert!(PriceFile::parse(PRICES).is_ok());
    assert_eq!(interruption::parse(&message().to_string()).notices().len(), 1);
    for manifest in [provisioner(), template()] {
        let inputs = api::legacy::ClassInputs { role: Some("r".into()), ..Default::default() };
        let read = api::legacy::node_class(&manifest, &inputs).map(drop);
        assert!(read.is_ok(), "{read:?}");
    }
}
