//! The algebra of requirements: sets behave as sets, and cheap probes agree with the full operation.

use std::collections::BTreeMap;

use karp_domain::api::{self, labels};
use karp_domain::requirement::{Incompatible, Operator, Requirement, Requirements, Undefined, ValueSet};
use proptest::prelude::*;

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
        values().prop_map(move |values| Requirement::only(key, values)),
        values().prop_map(move |values| Requirement::except(key, values)),
        bounded,
    ];
    prop::collection::vec(plain, 1..3)
        .prop_map(|parts| parts.into_iter().reduce(|a, b| a.intersection(&b)).expect("at least one"))
}

fn requirements() -> impl Strategy<Value = Requirements> {
    prop::collection::vec(prop_oneof![requirement("team"), requirement(labels::ZONE), requirement(labels::ARCH)], 0..4)
        .prop_map(|parts| parts.into_iter().collect())
}

proptest! {
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
        prop_assert_eq!(a.intersection(&a), a);
    }

    #[test]
    fn the_api_form_says_the_same(a in requirement("k")) {
        let back = a.to_api().into_iter().map(|(operator, values)| Requirement::new("k", operator, &values).expect("our own words"));
        prop_assert_eq!(back.reduce(|x, y| x.intersection(&y)), Some(a));
    }

    #[test]
    fn conjunctions_are_compatible_where_each_key_is(a in requirements(), b in requirements()) {
        let expected = a.iter().all(|mine| b.get(mine.key()).is_none_or(|wanted| {
            !mine.intersection(wanted).is_empty() || mine.admits_absence() && wanted.admits_absence()
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
        Err(Incompatible::Undefined { key: "team".to_owned() })
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
fn mistyped_keys_are_recognised() {
    assert_eq!(labels::similar("topology.kubernetes.io/zon"), Some(labels::ZONE));
    assert_eq!(labels::similar("karpenter.sh/capacitytype"), Some(labels::CAPACITY_TYPE));
    assert_eq!(labels::similar("team"), None);
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
