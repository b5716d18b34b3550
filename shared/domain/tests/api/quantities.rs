//! Quantities: the laws, and the vectors that Go's apimachinery 0.36.3 gives (`cargo sandbox oracle`).

use karp_domain::quantity::{Notation, Quantity};
use karp_domain::resources::Resources;
use proptest::prelude::*;
use serde_json::Value;

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("vectors are JSON")
}

#[test]
fn parses_rounds_and_prints_as_go_does() {
    let vectors = vectors(include_str!("../vectors/quantities.json"));
    assert!(vectors.len() >= 400, "{}", vectors.len());
    for vector in &vectors {
        let text = vector["text"].as_str().expect("a text");
        let ours = text.parse::<Quantity>();
        let canonical = ours.as_ref().ok().map(ToString::to_string);
        assert_eq!(canonical.as_deref(), vector.get("canonical").and_then(Value::as_str), "{text:?}");
        let Ok(quantity) = ours else { continue };
        for (field, amount) in [("milli", quantity.millis()), ("value", quantity.units())] {
            if let Some(expected) = vector.get(field) {
                assert_eq!(amount, *expected, "{field} of {text:?}");
            }
        }
    }
}

#[test]
fn compares_and_adds_as_go_does() {
    let vectors = vectors(include_str!("../vectors/quantity-pairs.json"));
    assert!(vectors.len() >= 150, "{}", vectors.len());
    for vector in &vectors {
        let quantity = |field: &str| -> Quantity {
            vector[field].as_str().expect("a text").parse().unwrap_or_else(|error| panic!("{error} in {vector}"))
        };
        let (a, b) = (quantity("a"), quantity("b"));
        assert_eq!(a.cmp(&b) as i64, vector["cmp"], "{vector}");
        assert_eq!((a + b).to_string(), vector["sum"], "{vector}");
        assert_eq!((a - b).to_string(), vector["difference"], "{vector}");
    }
}

#[test]
fn rounds_up_where_units_are_coarser() {
    let quantity: Quantity = "1500u".parse().expect("a quantity");
    assert_eq!((quantity.millis(), quantity.units()), (2, 1));
    let negative: Quantity = "-1500u".parse().expect("a quantity");
    assert_eq!((negative.millis(), negative.units()), (-1, 0));
}

fn quantities() -> impl Strategy<Value = Quantity> {
    let notation = prop_oneof![Just(Notation::Decimal), Just(Notation::Binary), Just(Notation::Exponent)];
    (any::<i64>(), -9_i32..9, notation).prop_map(|(mantissa, power, notation)| {
        let text = format!("{mantissa}e{power}");
        text.parse::<Quantity>().expect("in range").with_notation(notation)
    })
}

fn resources() -> impl Strategy<Value = Resources> {
    prop::collection::btree_map(
        prop_oneof![Just("cpu"), Just("memory"), Just("pods"), Just("nvidia.com/gpu")],
        0_i64..1000,
        0..4,
    )
    .prop_map(|amounts| amounts.into_iter().map(|(name, units)| (name, Quantity::from_units(units))).collect())
}

proptest! {
    #[test]
    fn printing_and_parsing_return_the_amount(quantity in quantities()) {
        // As in Go, a binary amount past the largest int64 is cut when it is read.
        prop_assume!(quantity.notation() != Notation::Binary || quantity.nanos().abs() <= i128::from(i64::MAX) * 1_000_000_000);
        let text = quantity.to_string();
        let back: Quantity = text.parse().expect("what we print is a quantity");
        prop_assert_eq!(back.nanos(), quantity.nanos());
        // From then on the text stays: only a binary amount that has no binary suffix reads back as a decimal.
        let again: Quantity = back.to_string().parse().expect("what we print is a quantity");
        prop_assert_eq!(again.to_string(), back.to_string());
    }

    #[test]
    fn serde_keeps_the_text(quantity in quantities()) {
        let json = serde_json::to_string(&quantity).expect("plain data");
        prop_assert_eq!(&json, &format!("\"{quantity}\""));
        if quantity.notation() != Notation::Binary {
            prop_assert_eq!(serde_json::from_str::<Quantity>(&json).expect("a quantity"), quantity);
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[-+]?[0-9.]{0,30}(|[numkKMGTPEei]{0,2}|[eE][-+]?[0-9]{0,3})") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>().map(Quantity::nanos), Ok(quantity.nanos()));
        }
    }

    #[test]
    fn sums_and_differences_cancel(a in quantities(), b in quantities()) {
        prop_assert_eq!(a + b - b, a);
        prop_assert_eq!((a + b).nanos(), (b + a).nanos());
        prop_assert_eq!(a.cmp(&b), a.nanos().cmp(&b.nanos()));
    }

    #[test]
    fn resources_fit_exactly_when_nothing_is_short(a in resources(), b in resources()) {
        prop_assert_eq!(a.fits(&b), a.shortage(&b).is_none());
        prop_assert!(a.fits(&a.plus(&b)));
        prop_assert!(a.fits(&a.maximum(&b)) && b.fits(&a.maximum(&b)));
        prop_assert!(a.plus(&b).minus(&b).iter().all(|(name, amount)| amount == a.get(name)));
    }
}
