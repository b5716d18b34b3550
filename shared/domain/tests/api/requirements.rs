//! The algebra of requirements: sets behave as sets, and cheap probes agree with the full operation.

use std::collections::BTreeMap;

use karp_domain::api::{self, labels};
use karp_domain::requirement::{Incompatible, Operator, Requirement, Requirements, Torn, Undefined, ValueSet};
use proptest::prelude::*;

use crate::deep;

const VALUES: &[&str] = &["a", "b", "c", "1", "2", "3", "10", "007"];

fn values() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(VALUES.to_vec(), 0..VALUES.len())
}

fn sets() -> impl Strategy<Value = ValueSet> {
    prop_oneof![values().prop_map(ValueSet::only), values().prop_map(ValueSet::except)]
}

fn requirement(key: &'static str) -> impl Strategy<Value = Requirement> {
    let bounded =
        (prop_oneof![Just(Operator::Gt), Just(Operator::Lt), Just(Operator::Gte), Just(Operator::Lte)], 0_i64..12)
            .prop_map(move |(operator, bound)| {
                Requirement::new(key, operator, &[bound.to_string()]).expect("a number")
            });
    let plain = prop_oneof![
        Just(Requirement::exists(key)),
        Just(Requirement::absent(key)),
        values().prop_map(move |values| Requirement::only(key, values)),
        values().prop_map(move |values| Requirement::except(key, values)),
        bounded,
    ];
    prop::collection::vec(plain, 1..3)
        .prop_map(|parts| parts.into_iter().reduce(|a, b| a.intersection(&b)).expect("at least one"))
        .prop_flat_map(|one| prop::option::of(1_u32..9).prop_map(move |least| one.clone().with_min_values(least)))
}

fn requirements() -> impl Strategy<Value = Requirements> {
    prop::collection::vec(prop_oneof![requirement("team"), requirement(labels::ZONE), requirement(labels::ARCH)], 0..4)
        .prop_map(|parts| parts.into_iter().collect())
}

proptest! {
    #![proptest_config(deep::cases(400))]

    #[test]
    fn intersection_holds_exactly_what_both_hold(a in sets(), b in sets()) {
        let both = a.intersection(&b);
        for value in VALUES {
            prop_assert_eq!(both.contains(value), a.contains(value) && b.contains(value));
        }
        prop_assert_eq!(a.intersects(&b), !both.is_empty());
        prop_assert_eq!(&both, &b.intersection(&a));
        prop_assert_eq!(a.intersection(&a), a);
    }

    #[test]
    fn requirements_of_one_key_form_a_semilattice(a in requirement("k"), b in requirement("k"), c in requirement("k")) {
        let both = a.intersection(&b);
        for value in VALUES {
            prop_assert_eq!(both.admits(value), a.admits(value) && b.admits(value), "{} & {} at {}", a, b, value);
        }
        prop_assert_eq!(a.intersects(&b), !both.is_empty());
        prop_assert_eq!(&both, &b.intersection(&a));
        prop_assert_eq!(both.intersection(&c), a.intersection(&b.intersection(&c)));
        prop_assert_eq!(both.admits_absence(), a.admits_absence() && b.admits_absence());
        prop_assert_eq!(a.meets(&b), !both.is_impossible());
        prop_assert_eq!(both.min_values(), a.min_values().max(b.min_values()));
        // what both say, each says: so the order of merging never shows
        prop_assert_eq!(&both.intersection(&a), &both);
        prop_assert_eq!(a.intersection(&a), a);
    }

    #[test]
    fn conjunctions_form_a_semilattice(a in requirements(), b in requirements(), c in requirements()) {
        prop_assert_eq!(a.and(&b), b.and(&a));
        prop_assert_eq!(a.and(&b).and(&c), a.and(&b.and(&c)));
        prop_assert_eq!(&a.and(&a), &a);
        prop_assert_eq!(&a.and(&Requirements::new()), &a);
        let parts: Requirements = b.iter().chain(a.iter()).cloned().collect();
        prop_assert_eq!(parts, a.and(&b));
    }

    #[test]
    fn equal_sets_of_labels_are_equal_requirements(a in requirement("k"), b in requirement("k")) {
        // without bounds the named values and an unnamed one tell any two sets apart
        prop_assume!(a.bounds().is_none() && b.bounds().is_none());
        let (a, b) = (a.with_min_values(None), b.with_min_values(None));
        let same = VALUES.iter().chain(&["unnamed"]).all(|value| a.admits(value) == b.admits(value))
            && a.admits_absence() == b.admits_absence();
        prop_assert_eq!(same, a == b, "{} / {}", a, b);
    }

    #[test]
    fn what_is_shown_can_be_read(a in requirement("k")) {
        let text = a.to_string();
        let read = text.split(" and ").map(|part| {
            let (operator, values) = part.strip_prefix("k ").expect("the key").split_once(' ').unwrap_or((&part[2..], ""));
            let values: Vec<&str> = values.trim_matches(['[', ']']).split_whitespace().collect();
            Requirement::new("k", operator.parse().expect("an operator"), &values).expect("our own words")
        });
        prop_assert_eq!(read.reduce(|x, y| x.intersection(&y)), Some(a.with_min_values(None)));
    }

    #[test]
    fn the_api_form_says_the_same(a in requirement("k")) {
        let a = a.with_min_values(None);
        let back = a.to_api().into_iter().map(|(operator, values)| Requirement::new("k", operator, &values).expect("our own words"));
        prop_assert_eq!(back.reduce(|x, y| x.intersection(&y)), Some(a));
    }

    #[test]
    fn conjunctions_are_compatible_where_each_key_is(a in requirements(), b in requirements()) {
        let expected = a.iter().all(|mine| b.get(mine.key()).is_none_or(|wanted| {
            !mine.intersection(wanted).is_impossible()
        }));
        prop_assert_eq!(a.intersects(&b).is_ok(), expected);
        prop_assert_eq!(a.intersects(&b).is_ok(), b.intersects(&a).is_ok());
        if a.compatible(&b, Undefined::Denied).is_ok() {
            prop_assert!(a.compatible(&b, Undefined::WellKnownAllowed).is_ok());
        }
    }

    #[test]
    fn specs_return_the_conjunction(a in requirements()) {
        prop_assert_eq!(api::requirements(&api::requirement_specs(&a)), Ok(a));
    }
}

#[test]
fn custom_keys_must_be_defined_and_well_known_need_not() {
    let open = Requirements::new();
    let zone: Requirements = [Requirement::only(labels::ZONE, ["eu-west-1a"])].into_iter().collect();
    let team: Requirements = [Requirement::only("team", ["a"])].into_iter().collect();
    let no_team: Requirements = [Requirement::except("team", ["a"])].into_iter().collect();
    assert_eq!(open.compatible(&zone, Undefined::WellKnownAllowed), Ok(()));
    assert!(open.compatible(&zone, Undefined::Denied).is_err());
    assert_eq!(
        open.compatible(&team, Undefined::WellKnownAllowed),
        Err(Incompatible::Undefined { key: "team".to_owned(), meant: None })
    );
    assert_eq!(open.compatible(&no_team, Undefined::WellKnownAllowed), Ok(()));
}

#[test]
fn older_spellings_are_one_key() {
    let mut both = Requirements::new();
    both.add(Requirement::only("beta.kubernetes.io/arch", ["amd64", "arm64"]));
    both.add(Requirement::only(labels::ARCH, ["arm64"]));
    assert_eq!(both.len(), 1);
    assert_eq!(both.single("beta.kubernetes.io/arch").map(AsRef::as_ref), Some("arm64"));
}

#[test]
fn mistyped_keys_and_values_say_what_was_meant() {
    let pool: Requirements = [
        Requirement::only("example.com/team", ["payments", "search"]),
        Requirement::only(labels::ZONE, ["eu-west-1a", "eu-west-1b"]),
        Requirement::only(labels::ARCH, ["amd64", "arm64"]),
        Requirement::only(labels::CAPACITY_TYPE, ["on-demand", "spot"]),
        Requirement::only(labels::INSTANCE_TYPE, ["m7i.large", "m7i.xlarge"]),
    ]
    .into_iter()
    .collect();
    let cases = [
        ("topology.kubernetesio/zone", "eu-west-1a", Some(labels::ZONE)),
        ("topology.kubernetes.io/zon", "eu-west-1a", Some(labels::ZONE)),
        ("karpenter.sh/capacitytype", "spot", Some(labels::CAPACITY_TYPE)),
        ("karpenter.sh/provisioner-name", "default", Some(labels::NODE_POOL)),
        ("example.com/taem", "search", Some("example.com/team")),
        ("team", "search", Some("example.com/team")),
        ("colour", "red", None),
        ("", "red", None),
        (labels::ZONE, "eu-west1a", Some("eu-west-1a")),
        (labels::ZONE, "eu-west-1c", None),
        (labels::ZONE, "EU-WEST-1A", Some("eu-west-1a")),
        (labels::ARCH, "x86_64", Some("amd64")),
        (labels::ARCH, "aarch64", Some("arm64")),
        (labels::ARCH, "amd46", Some("amd64")),
        (labels::CAPACITY_TYPE, "ondemand", Some("on-demand")),
        (labels::CAPACITY_TYPE, "reserved", None),
        (labels::INSTANCE_TYPE, "m6i.large", None),
        ("example.com/team", "paymnets", Some("payments")),
        ("example.com/team", "billing", None),
    ];
    for (key, value, meant) in cases {
        let wanted: Requirements = [Requirement::only(key, [value])].into_iter().collect();
        let error = pool.compatible(&wanted, Undefined::WellKnownAllowed).expect_err(value);
        let said =
            error.to_string().split("did you mean \"").nth(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        assert_eq!(said.as_deref(), meant, "{key}={value}: {error}");
    }
}

#[test]
fn affinity_without_the_label_holds_only_for_negative_operators() {
    let bare = BTreeMap::new();
    let matches = |operator, values: &[&str]| {
        let requirement = Requirement::new("team", operator, values).expect("a requirement");
        [requirement].into_iter().collect::<Requirements>().match_labels(&bare)
    };
    assert!(matches(Operator::NotIn, &["a"]) && matches(Operator::DoesNotExist, &[]));
    assert!(!matches(Operator::In, &["a"]) && !matches(Operator::Exists, &[]) && !matches(Operator::Gt, &["1"]));
}

#[test]
fn a_contradiction_is_named() {
    let mut wanted = Requirements::from_labels([(labels::ZONE, "eu-west-1a")]);
    wanted.add(Requirement::only(labels::ZONE, ["eu-west-1b"]));
    let error = Requirements::new().compatible(&wanted, Undefined::WellKnownAllowed).expect_err("a contradiction");
    let text = "what is wanted of label \"topology.kubernetes.io/zone\" contradicts itself: \
                topology.kubernetes.io/zone DoesNotExist and topology.kubernetes.io/zone Exists";
    assert_eq!(error.to_string(), text);
}

#[test]
fn what_contradicts_what_is_noted_with_its_values() {
    let (mut wanted, mut torn) = (Requirements::new(), Torn::new());
    for values in [&["a", "b"][..], &["b", "c"], &["d"], &["e"]] {
        wanted.add_noting(Requirement::only("team", values.iter().copied()), &mut torn);
    }
    wanted.add_noting(Requirement::exists("other"), &mut torn);
    assert_eq!(torn, Torn::from([("team".into(), "team In [b] and team In [d]".to_owned())]));
    assert!(wanted.get("team").is_some_and(Requirement::is_impossible));
}

#[test]
fn bounds_beyond_the_largest_number_admit_none() {
    for (operator, bound) in [(Operator::Gt, i64::MAX), (Operator::Lt, i64::MIN)] {
        let none = Requirement::new("k", operator, &[bound.to_string()]).expect("a number");
        assert!(none.is_impossible() && !none.admits(&bound.to_string()), "{none}");
    }
}
