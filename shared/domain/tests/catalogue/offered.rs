//! Reserved offerings and overlays, through the catalogue's queries.

use karp_domain::api::labels;
use karp_domain::catalogue::{
    CapacityReservation, CapacityType, Catalogue, InstanceType, NodeSettings, Overlay, Price, PriceChange, PriceSource,
    Reservation, ReservationKind, Tenancy, Zone, builtin_type, estimate_on_demand, offerings, reserved_offerings,
};
use karp_domain::requirement::{Requirement, Requirements};
use proptest::prelude::*;

fn zones() -> Vec<Zone> {
    ["a", "b", "c"].map(|z| Zone::new(&format!("us-east-1{z}"), &format!("use1-az-{z}"))).to_vec()
}

fn reservation(id: &str, instance_type: &str, zone: &str, remaining: u32) -> CapacityReservation {
    let kind = if id.starts_with("cr-block") { ReservationKind::CapacityBlock } else { ReservationKind::Default };
    let reservation = Reservation { id: id.into(), kind, interruptible: false, tenancy: Tenancy::Default, remaining };
    CapacityReservation { instance_type: instance_type.into(), zone: zone.into(), reservation, expiring: false }
}

fn catalogue(reservations: &[CapacityReservation]) -> Catalogue {
    let types = ["c5.large", "m5.large", "m5.xlarge", "r5.large"].map(|name| {
        let facts = builtin_type(name).unwrap();
        let on_demand = estimate_on_demand(facts);
        let mut all = offerings(facts, &zones(), |capacity_type, _| {
            (capacity_type == CapacityType::OnDemand).then_some(on_demand)
        });
        all.extend(reserved_offerings(name, &zones(), reservations, on_demand));
        InstanceType::from_facts(facts, &NodeSettings::default(), all)
    });
    Catalogue::new(types.to_vec())
}

fn reserved() -> Catalogue {
    let ended = CapacityReservation { expiring: true, ..reservation("cr-ends", "c5.large", "us-east-1b", 9) };
    catalogue(&[
        reservation("cr-1", "m5.large", "us-east-1a", 2),
        reservation("cr-2", "m5.xlarge", "us-east-1b", 1),
        reservation("cr-block-3", "r5.large", "us-east-1c", 4),
        reservation("cr-full", "r5.large", "us-east-1a", 0),
        reservation("cr-elsewhere", "r5.large", "us-west-2a", 4),
        ended,
    ])
}

fn wanted(requirements: &[Requirement]) -> Requirements {
    let mut all = Requirements::new();
    requirements.iter().for_each(|requirement| all.add(requirement.clone()));
    all
}

/// What can be had under requirements: type, zone and capacity type (reservation), cheapest first.
fn had(catalogue: &Catalogue, requirements: &[Requirement]) -> Vec<String> {
    let (types, market) = catalogue.select(&wanted(requirements));
    let ranked = catalogue.ranked(&types, market);
    let name = |o: &karp_domain::catalogue::RankedOffering| {
        let how = o.reservation.as_deref().unwrap_or(o.capacity_type.as_str()).to_owned();
        format!("{} {} {how}", o.instance_type, &o.zone.name[9..])
    };
    ranked.iter().map(name).collect()
}

#[test]
fn a_type_is_of_its_region_whatever_zone_comes_first() {
    let region = |zones: &[&str]| {
        let zones: Vec<Zone> = zones.iter().map(|zone| Zone::new(zone, "")).collect();
        let facts = builtin_type("m5.large").unwrap();
        let kind = InstanceType::from_facts(facts, &NodeSettings::default(), offerings(facts, &zones, |_, _| None));
        kind.labels.get(labels::REGION).map(|values| values.join(","))
    };
    let cases: [(&[&str], Option<&str>); 6] = [
        (&["us-west-2a"], Some("us-west-2")),
        (&["us-west-2-lax-1a", "us-west-2a"], Some("us-west-2")),
        (&["us-west-2-lax-1a"], Some("us-west-2")),
        (&["us-east-1-wl1-bos-wlz-1"], Some("us-east-1")),
        (&["us-gov-west-1b"], Some("us-gov-west-1")),
        (&["zone-1"], None),
    ];
    for (zones, expected) in cases {
        assert_eq!(region(zones).as_deref(), expected, "{zones:?}");
    }
}

#[test]
fn reserved_capacity_is_next_to_free_and_comes_first() {
    let catalogue = reserved();
    let ranked = catalogue.ranked(&catalogue.all(), karp_domain::catalogue::Market::ANY);
    let first: Vec<_> = ranked.iter().take(4).map(|o| (&*o.instance_type, o.reservation.as_deref())).collect();
    let (dearest, cheapest_paid) = (ranked[2].price, ranked[3].price);
    assert_eq!(
        first[..3],
        [("m5.large", Some("cr-1")), ("r5.large", Some("cr-block-3")), ("m5.xlarge", Some("cr-2")),]
    );
    assert_eq!(first[3].1, None);
    assert!(Price::ZERO < ranked[0].price && ranked[0].price < dearest, "prices keep the order of the types");
    assert!(dearest.nano_dollars() * 100_000 < cheapest_paid.nano_dollars());
    let rooms: Vec<_> = catalogue
        .reservations()
        .filter(|(_, o)| o.available)
        .map(|(at, o)| (&*catalogue.types()[at].name, o.reservation.as_ref().unwrap().remaining))
        .collect();
    assert_eq!(
        rooms,
        [("m5.large", 2), ("m5.xlarge", 1), ("r5.large", 4)],
        "full, expiring and foreign ones cannot be had"
    );
}

#[test]
fn requirements_choose_among_reservations() {
    let catalogue = reserved();
    let only = |key: &str, value: &str| Requirement::only(key, [value]);
    let reserved = only(labels::CAPACITY_TYPE, "reserved");
    assert_eq!(
        had(&catalogue, std::slice::from_ref(&reserved)),
        ["m5.large a cr-1", "r5.large c cr-block-3", "m5.xlarge b cr-2"]
    );
    assert_eq!(had(&catalogue, &[only(labels::CAPACITY_RESERVATION_ID, "cr-2")]), ["m5.xlarge b cr-2"]);
    assert_eq!(
        had(&catalogue, &[only(labels::CAPACITY_RESERVATION_TYPE, "capacity-block")]),
        ["r5.large c cr-block-3"]
    );
    assert_eq!(had(&catalogue, &[only(labels::CAPACITY_RESERVATION_ID, "cr-none")]), [""; 0]);
    assert_eq!(had(&catalogue, &[reserved.clone(), only(labels::ZONE, "us-east-1b")]), ["m5.xlarge b cr-2"]);
    assert_eq!(had(&catalogue, &[only(labels::ZONE_ID, "use1-az-b"), reserved]), ["m5.xlarge b cr-2"]);
    // a pod that refuses reservations still gets the paid offerings of the same type
    let none = Requirement::only::<&str>(labels::CAPACITY_RESERVATION_ID, []);
    let paid = had(&catalogue, &[only(labels::INSTANCE_TYPE, "m5.large"), none]);
    assert_eq!(paid.len(), 6, "{paid:?}");
    assert!(paid.iter().all(|o| !o.contains("cr-")), "{paid:?}");
    assert!(catalogue.defines(labels::CAPACITY_RESERVATION_ID));
    assert!(!self::catalogue(&[]).defines(labels::CAPACITY_RESERVATION_ID));
    // what is remembered as unavailable is gone from every query
    let without = catalogue.without(|name, o| name == "m5.xlarge" && o.capacity_type == CapacityType::Reserved);
    assert_eq!(had(&without, &[only(labels::CAPACITY_RESERVATION_ID, "cr-2")]), [""; 0]);
}

fn overlay(name: &str, weight: u32, requirements: &[Requirement], price: Option<&str>) -> Overlay {
    Overlay {
        name: name.into(),
        requirements: wanted(requirements),
        weight,
        price: price.map(|text| text.parse().unwrap()),
        capacity: karp_domain::resources::Resources::new(),
    }
}

fn price_of(catalogue: &Catalogue, name: &str, how: CapacityType) -> (u64, PriceSource) {
    let of = |o: &&karp_domain::catalogue::Offering| o.capacity_type == how;
    let offering = catalogue.get(name).unwrap().offerings.iter().find(of).unwrap();
    (offering.price.micro_dollars(), offering.source)
}

#[test]
fn price_changes_are_read_as_users_write_them() {
    let price = Price::from_micro_dollars(100_000);
    for (text, micro) in [
        ("0.05", 50_000),
        ("+0.1", 200_000),
        ("-0.05", 50_000),
        ("-7", 0),
        ("+10%", 110_000),
        ("-5.5%", 94_500),
        ("-100%", 0),
        ("+.5%", 100_500),
    ] {
        assert_eq!(text.parse::<PriceChange>().unwrap().of(price).micro_dollars(), micro, "{text}");
    }
    for text in ["", "+", "abc", "+1e3", "--1", "5%", "+-5%", "nan", "+inf"] {
        assert!(text.parse::<PriceChange>().is_err(), "{text}");
    }
}

#[test]
fn the_heaviest_overlay_decides_and_equal_weights_conflict() {
    let base = reserved();
    let on_demand = Requirement::only(labels::CAPACITY_TYPE, ["on-demand"]);
    let m5 = Requirement::only(labels::INSTANCE_FAMILY, ["m5"]);
    let (before, _) = price_of(&base, "m5.large", CapacityType::OnDemand);
    let all = [
        overlay("cheap", 10, &[m5.clone(), on_demand.clone()], Some("-50%")),
        overlay("dear", 5, &[on_demand], Some("+100%")),
        overlay("also-cheap", 10, &[m5], Some("0.001")),
        overlay("elsewhere", 10, &[Requirement::only("team", ["red"])], Some("0.5")),
    ];
    let after = base.overlaid(&Requirements::new(), &all);
    assert_eq!(price_of(&after.catalogue, "m5.large", CapacityType::OnDemand), (before / 2, PriceSource::Overlaid));
    let (c5, _) = price_of(&base, "c5.large", CapacityType::OnDemand);
    assert_eq!(price_of(&after.catalogue, "c5.large", CapacityType::OnDemand).0, c5 * 2);
    assert_eq!(
        price_of(&after.catalogue, "m5.large", CapacityType::Spot),
        price_of(&base, "m5.large", CapacityType::Spot)
    );
    let conflicts: Vec<_> = after.conflicts.iter().map(|c| (&*c.overlay, &*c.with, &*c.instance_type)).collect();
    assert_eq!(conflicts, [("also-cheap", "cheap", "m5.large")], "the later name of equal weight comes first");
    // labels of the pool count as the node's
    let red = wanted(&[Requirement::only("team", ["red"])]);
    let after = base.overlaid(&red, &all[3..]);
    assert_eq!(price_of(&after.catalogue, "r5.large", CapacityType::Spot), (500_000, PriceSource::Overlaid));
    // queries follow the new prices
    let after = base.overlaid(
        &Requirements::new(),
        &[overlay("r5", 1, &[Requirement::only(labels::INSTANCE_FAMILY, ["r5"])], Some("0"))],
    );
    assert!(had(&after.catalogue, &[])[0].starts_with("r5.large"));
}

#[test]
fn overlays_add_what_nodes_have_beyond_ec2() {
    let mut disks = overlay("disks", 3, &[Requirement::only(labels::INSTANCE_FAMILY, ["m5"])], None);
    disks.capacity.set("example.com/fuse", "4".parse().unwrap());
    disks.capacity.set("hugepages-2Mi", "1Gi".parse().unwrap());
    let mut more = overlay("more", 1, &[], None);
    more.capacity.set("example.com/fuse", "9".parse().unwrap());
    let after = reserved().overlaid(&Requirements::new(), &[more, disks]);
    assert!(after.conflicts.is_empty(), "{:?}", after.conflicts);
    let there = |name: &str, resource: &str| after.catalogue.get(name).unwrap().allocatable().get(resource).to_string();
    assert_eq!([there("m5.large", "example.com/fuse"), there("r5.large", "example.com/fuse")], ["4", "9"]);
    assert_eq!(there("m5.large", "memory"), "5879Mi", "huge pages come out of memory");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The order in which overlays are listed decides nothing, and no price falls below zero.
    #[test]
    fn overlays_do_not_depend_on_their_order(
        seeds in prop::collection::vec((0_u32..3, 0_usize..4, prop::sample::select(vec!["0.2", "+10%", "-20%", "-3", "+0.05"])), 0..8),
        rotation in 0_usize..8,
    ) {
        let families = ["c5", "m5", "r5", "x1"];
        let mut all: Vec<Overlay> = seeds.iter().enumerate().map(|(at, (weight, family, price))| {
            let family = Requirement::only(labels::INSTANCE_FAMILY, [families[*family]]);
            overlay(&format!("overlay-{at}"), *weight, &[family], Some(price))
        }).collect();
        let base = reserved();
        let one = base.overlaid(&Requirements::new(), &all);
        let by = rotation % all.len().max(1);
        all.rotate_left(by);
        let other = base.overlaid(&Requirements::new(), &all);
        prop_assert_eq!(one.catalogue.types(), other.catalogue.types());
        prop_assert_eq!(&one.conflicts, &other.conflicts);
        // all overlays but those left out have an effect: leaving the losers out by hand changes nothing
        let kept: Vec<Overlay> = all.into_iter().filter(|o| one.conflicts.iter().all(|c| c.overlay != o.name)).collect();
        let again = base.overlaid(&Requirements::new(), &kept);
        prop_assert_eq!(one.catalogue.types(), again.catalogue.types());
        prop_assert!(again.conflicts.is_empty());
    }
}

#[test]
fn a_reservation_of_another_tenancy_is_not_admitted() {
    let of = |tenancy| {
        let held = reservation("cr-1", "c5.large", "us-east-1b", 1);
        let held = CapacityReservation { reservation: Reservation { tenancy, ..held.reservation }, ..held };
        let facts = builtin_type("c5.large").unwrap();
        let mut all = offerings(facts, &zones(), |_, _| None);
        all.extend(reserved_offerings("c5.large", &zones(), &[held], estimate_on_demand(facts)));
        let catalogue = Catalogue::new(vec![InstanceType::from_facts(facts, &NodeSettings::default(), all)]);
        let ranked = catalogue.ranked(&catalogue.all(), catalogue.market(&Requirements::default()));
        let admitted = |requirements: &Requirements| {
            let admitted = ranked.iter().filter(|offering| catalogue.admits(offering, requirements));
            let (reserved, bought): (Vec<_>, Vec<_>) = admitted.partition(|offering| offering.reservation.is_some());
            assert_eq!(bought.len(), 6, "what is not reserved is sold for both");
            !reserved.is_empty()
        };
        let asking = |values: &[&str]| {
            let asked = Requirement::only(labels::INSTANCE_TENANCY, values.iter().copied());
            Requirements::from_iter([asked])
        };
        [Requirements::default(), asking(&["default", "dedicated"]), asking(&["dedicated"])].map(|one| admitted(&one))
    };
    assert_eq!(of(Tenancy::Default), [true, true, false]);
    assert_eq!(of(Tenancy::Dedicated), [false, false, true]);
}
