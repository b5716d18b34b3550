//! Quantities: the laws, and the figures that Go's apimachinery 0.36.3 gives.

use karp_domain::quantity::{Notation, Quantity};
use karp_domain::resources::Resources;
use proptest::prelude::*;

/// Text and its canonical form; none where Go refuses it.
const GO: &[(&str, Option<&str>)] = &[
    ("0", Some("0")),
    ("1", Some("1")),
    ("-1", Some("-1")),
    ("+1", Some("1")),
    ("100m", Some("100m")),
    ("1000m", Some("1")),
    ("1500m", Some("1500m")),
    ("0.5", Some("500m")),
    ("0.1", Some("100m")),
    ("1.", Some("1")),
    (".", Some("0")),
    (" .5", None),
    (".5", Some("500m")),
    ("Ki", Some("0")),
    ("1Ki", Some("1Ki")),
    ("1024", Some("1024")),
    ("1023Ki", Some("1023Ki")),
    ("1024Ki", Some("1Mi")),
    ("1.5Gi", Some("1536Mi")),
    ("0.5Ki", Some("512")),
    ("0.0001Ki", Some("102400u")),
    ("0.3Mi", Some("314572800m")),
    ("1e3", Some("1e3")),
    ("1E3", Some("1e3")),
    ("1e-3", Some("1e-3")),
    ("1E", Some("1E")),
    ("2e6", Some("2e6")),
    ("1.5e3", Some("1500")),
    ("12e-9", Some("12e-9")),
    ("1n", Some("1n")),
    ("0.1n", Some("1n")),
    ("1u", Some("1u")),
    ("1k", Some("1k")),
    ("1000k", Some("1M")),
    ("1M", Some("1M")),
    ("1G", Some("1G")),
    ("1T", Some("1T")),
    ("1P", Some("1P")),
    ("9E", Some("9E")),
    ("1Ei", Some("1Ei")),
    ("8Ei", Some("9223372036854775807")),
    ("16Ei", Some("9223372036854775807")),
    ("100Ei", Some("9223372036854775807")),
    ("123456789", Some("123456789")),
    ("1234567890123", Some("1234567890123")),
    ("1.23456789012", Some("1234567891n")),
    ("-1.5Gi", Some("-1536Mi")),
    ("-100m", Some("-100m")),
    ("-0.1n", Some("-1n")),
    ("5e", None),
    ("1e1.5", None),
    ("1ki", None),
    ("1K", None),
    ("abc", None),
    ("", None),
    ("1 ", None),
    ("1Gi ", None),
    ("0x10", None),
    ("1_000", None),
    ("00012", Some("12")),
    ("0.00", Some("0")),
    ("100000000000000000000", Some("100E")),
    ("-0", Some("0")),
    ("1.5k", Some("1500")),
    ("1500000", Some("1500k")),
    ("64Gi", Some("64Gi")),
    ("3.9Gi", Some("4187593113600m")),
    ("15573Mi", Some("15573Mi")),
    ("7.5", Some("7500m")),
    ("1e18", Some("1e18")),
    ("1e-9", Some("1e-9")),
    ("1e-10", Some("1e-9")),
    ("12345.678m", Some("12345678u")),
    ("0.001Ki", Some("1024m")),
    ("1mi", None),
    ("1Mi1", None),
    ("--1", None),
    ("1.2.3", None),
];

#[test]
fn parses_and_prints_as_go_does() {
    for (text, canonical) in GO {
        let ours = text.parse::<Quantity>().ok().map(|quantity| quantity.to_string());
        assert_eq!(ours.as_deref(), *canonical, "{text:?}");
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
        prop_assert_eq!(serde_json::from_str::<Quantity>(&json).expect("a quantity"), quantity);
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
