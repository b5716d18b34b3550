use std::collections::BTreeMap;

use karp_domain::catalogue::{
    CapacityType, Price, PriceSource, Zone, builtin_type, estimate_on_demand, estimate_spot, offerings,
};

use crate::shared;

fn median(mut errors: Vec<f64>) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

#[test]
fn the_estimate_is_close_on_the_families_that_most_nodes_are_of() {
    let Some(published) = shared("data/on-demand-us-east-1.json") else { return };
    let mut errors: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, price) in published.as_object().expect("prices by type") {
        let Some(facts) = builtin_type(name) else { continue };
        let price = price.as_f64().expect("dollars");
        let category = facts.name_parts().category;
        if matches!(category, "c" | "m" | "r" | "t") {
            errors.entry(category).or_default().push((estimate_on_demand(facts).dollars() / price - 1.0).abs());
        }
    }
    assert_eq!(errors.len(), 4);
    for (category, errors) in errors {
        let (count, median) = (errors.len(), median(errors));
        println!("{category}: median error {:.2} % over {count} types", median * 100.0);
        assert!(median <= 0.05, "{category}: {median}");
    }
}

/// A few list prices of us-east-1 that EC2's price page shows to everybody: the estimate stays within a tenth.
#[test]
fn well_known_prices_are_met() {
    for (name, dollars) in [
        ("m5.large", 0.096),
        ("c5.xlarge", 0.17),
        ("r5.large", 0.126),
        ("m7g.large", 0.0816),
        ("t3.medium", 0.0416),
        ("c6i.4xlarge", 0.68),
        ("g5.xlarge", 1.006),
    ] {
        let estimate = estimate_on_demand(builtin_type(name).unwrap()).dollars();
        assert!((estimate / dollars - 1.0).abs() < 0.1, "{name}: {estimate} for {dollars}");
    }
}

#[test]
fn a_price_says_where_it_comes_from() {
    let facts = builtin_type("m5.large").unwrap();
    let zones = [Zone::new("us-east-1a", "use1-az1"), Zone::new("us-east-1b", "use1-az2")];
    let listed = Price::from_micro_dollars(96_000);
    let spot = Price::from_micro_dollars(40_000);
    let all = offerings(facts, &zones, |capacity_type, zone| match capacity_type {
        CapacityType::OnDemand => Some(listed),
        _ => (&*zone.name == "us-east-1a").then_some(spot),
    });
    let seen: Vec<_> = all.iter().map(|o| (o.capacity_type, &*o.zone.name, o.price, o.source)).collect();
    let estimate = estimate_spot(listed, "us-east-1b");
    assert_eq!(
        seen,
        [
            (CapacityType::Spot, "us-east-1a", spot, PriceSource::Published),
            (CapacityType::OnDemand, "us-east-1a", listed, PriceSource::Published),
            (CapacityType::Spot, "us-east-1b", estimate, PriceSource::Estimated),
            (CapacityType::OnDemand, "us-east-1b", listed, PriceSource::Published),
        ]
    );
    assert!(offerings(facts, &zones, |_, _| None).iter().all(|o| o.is_estimated()));
}
