//! Round trips of the codec, and the spellings that only the other side writes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::{decode, encode, encode_refined, from_json, type_from_json, type_to_json};
use crate::schema::Promise;
use crate::{Number, Type, Value};

fn leaf_type() -> impl Strategy<Value = Type> {
    prop_oneof![Just(Type::String), Just(Type::Number), Just(Type::Bool)]
}

fn any_type() -> impl Strategy<Value = Type> {
    leaf_type().prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(Type::list),
            inner.clone().prop_map(Type::set),
            inner.clone().prop_map(Type::map),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Type::Tuple),
            proptest::collection::btree_map("[a-z_]{1,8}", inner, 0..4).prop_map(Type::Object),
        ]
    })
}

fn value_of(kind: &Type) -> BoxedStrategy<Value> {
    let known = match kind {
        Type::String => any::<String>().prop_map(Value::String).boxed(),
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Number => prop_oneof![
            any::<i64>().prop_map(Value::from),
            (-1e12..1e12_f64).prop_map(Value::from),
            Just(Value::Number(Number::Text("123456789012345678901234567890".into()))),
        ]
        .boxed(),
        Type::Dynamic => Just(Value::from("dynamic")).boxed(),
        Type::List(element) => proptest::collection::vec(value_of(element), 0..4).prop_map(Value::List).boxed(),
        Type::Set(element) => proptest::collection::vec(value_of(element), 0..4).prop_map(Value::canonical_set).boxed(),
        Type::Map(element) => {
            proptest::collection::btree_map("[a-z./-]{0,8}", value_of(element), 0..4).prop_map(Value::Map).boxed()
        }
        Type::Tuple(kinds) => kinds.iter().map(value_of).collect::<Vec<_>>().prop_map(Value::List).boxed(),
        Type::Object(attributes) => {
            let names: Vec<String> = attributes.keys().cloned().collect();
            let values: Vec<_> = attributes.values().map(value_of).collect();
            values
                .prop_map(move |values| Value::Map(names.iter().cloned().zip(values).collect::<BTreeMap<_, _>>()))
                .boxed()
        }
    };
    prop_oneof![8 => known, 1 => Just(Value::Null), 1 => Just(Value::Unknown)].boxed()
}

fn typed_value() -> impl Strategy<Value = (Type, Value)> {
    any_type().prop_flat_map(|kind| (Just(kind.clone()), value_of(&kind)))
}

proptest! {
    #[test]
    fn msgpack_round_trips((kind, value) in typed_value()) {
        let bytes = encode(&value, &kind).unwrap();
        prop_assert_eq!(decode(&bytes, &kind).unwrap(), value);
    }

    #[test]
    fn dynamic_values_carry_their_type((_, value) in typed_value()) {
        let wrapped = Value::List(vec![value]);
        let kind = Type::list(Type::Dynamic);
        prop_assert_eq!(decode(&encode(&wrapped, &kind).unwrap(), &kind).unwrap(), wrapped);
    }

    #[test]
    fn broken_bytes_are_errors_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in any_type()) {
        let _ = decode(&bytes, &kind);
    }

    #[test]
    fn types_round_trip_as_json(kind in any_type()) {
        prop_assert_eq!(type_from_json(&type_to_json(&kind)), Some(kind));
    }
}

#[test]
fn refined_unknown_reads_as_unknown() {
    // ext 8, 3 bytes, type 12: a map of one refinement
    assert_eq!(decode(&[0xc7, 3, 12, 0x81, 1, 0xc2], &Type::String).unwrap(), Value::Unknown);
}

#[test]
fn promises_are_written_as_refinements() {
    let kind = Type::object([("arn", Type::String), ("id", Type::String), ("size", Type::Number)]);
    let value = Value::object([("arn", Value::Unknown), ("id", Value::Unknown), ("size", Value::Unknown)]);
    let (arn, id) = (Promise::Prefix("arn:".into()), Promise::NotNull);
    let bytes = encode_refined(&value, &kind, &|path| match path.to_string().as_str() {
        "arn" => Some(&arn),
        "id" => Some(&id),
        _ => None,
    });
    let bytes = bytes.unwrap();
    let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    // ext 8 of type 12: {1: false, 2: "arn:"}
    assert!(holds(&[0xc7, 9, 12, 0x82, 1, 0xc2, 2, 0xa4, b'a', b'r', b'n', b':']), "{bytes:x?}");
    assert!(holds(&[0xc7, 3, 12, 0x81, 1, 0xc2]), "{bytes:x?}");
    assert!(holds(&[0xd4, 0, 0]), "{bytes:x?}");
    assert_eq!(decode(&bytes, &kind).unwrap(), value);
}

#[test]
fn numbers_arrive_in_every_spelling() {
    let number = |bytes: &[u8]| decode(bytes, &Type::Number).unwrap();
    assert_eq!(number(&[0x07]), Value::from(7));
    assert_eq!(number(&[0xcb, 0x40, 0x1c, 0, 0, 0, 0, 0, 0]), Value::from(7));
    assert_eq!(number(&[0xa1, b'7']), Value::from(7));
    assert_eq!(number(&[0xff]), Value::from(-1));
    assert_eq!(
        number(&[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        Value::Number(Number::Text(u64::MAX.to_string()))
    );
}

#[test]
fn fractions_and_large_numbers_return_as_the_decimals_that_they_were() {
    let large = ["0.1", "0.30000000000000004", "2.5", "12345678901234567000", "100000000000000000000000"];
    for text in large {
        let number = Value::Number(Number::parse(text).unwrap());
        let mut as_text = vec![0xa0 | u8::try_from(text.len()).unwrap()];
        as_text.extend(text.as_bytes());
        assert_eq!(encode(&number, &Type::Number).unwrap(), as_text, "{text}");
        assert_eq!(decode(&as_text, &Type::Number).unwrap(), number, "{text}");
    }
}

#[test]
fn floats_return_as_the_very_numbers_that_they_were() {
    // Core sends a float where one holds the number exactly, be it shorter by a decimal that is near it.
    for (float, text) in [
        (2.0_f64.powi(64), "18446744073709551616"),
        (-2.0_f64.powi(64), "-18446744073709551616"),
        (2.0_f64.powi(-24), "0.000000059604644775390625"),
        (0.375, "0.375"),
    ] {
        let bytes = [&[0xcb][..], &f64::to_be_bytes(float)].concat();
        let number = decode(&bytes, &Type::Number).unwrap();
        let as_text = [&[0xa0 | u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
        assert_eq!(encode(&number, &Type::Number).unwrap(), as_text, "{text}");
        assert_eq!(from_json(&json!(text), &Type::Number).unwrap(), number, "state says it so: {text}");
    }
    assert_eq!(decode(&[0xcb, 0x80, 0, 0, 0, 0, 0, 0, 0], &Type::Number).unwrap(), Value::from(0));
    assert!(decode(&[&[0xcb][..], &f64::INFINITY.to_be_bytes()].concat(), &Type::Number).is_err());
}

#[test]
fn a_number_is_the_same_with_an_exponent() {
    for (short, long) in [("1e-7", "0.0000001"), ("2.5e-9", "0.0000000025"), ("1e21", "1000000000000000000000")] {
        assert_eq!(Number::parse(short), Number::parse(long));
        assert_eq!(from_json(&serde_json::from_str(short).unwrap(), &Type::Number), decode_text(long));
    }
}

fn decode_text(text: &str) -> Result<Value, super::CodecError> {
    decode(&[&[0xa0 | u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat(), &Type::Number)
}

#[test]
fn sets_are_equal_in_any_order() {
    let kind = Type::set(Type::String);
    let bytes = encode(&Value::from(vec!["b", "a"]), &kind).unwrap();
    assert_eq!(decode(&bytes, &kind).unwrap(), Value::from(vec!["a", "b"]));
}

#[test]
fn errors_name_the_attribute() {
    let kind = Type::object([("spec", Type::object([("sizes", Type::list(Type::Number))]))]);
    let value =
        Value::object([("spec", Value::object([("sizes", Value::from(vec![Value::from(1), Value::from("x")]))]))]);
    let error = encode(&value, &kind).unwrap_err();
    assert_eq!(error.path.to_string(), "spec.sizes[1]");
    assert_eq!(error.message, "expected a number, not a string");
}

#[test]
fn attributes_outside_the_schema_are_refused() {
    let error = encode(&Value::object([("surprise", 1)]), &Type::object([("a", Type::Bool)])).unwrap_err();
    assert!(error.message.contains("surprise"), "{error}");
}

#[test]
fn stored_json_drops_old_attributes_and_fills_new_ones_with_null() {
    let kind = Type::object([("name", Type::String), ("added", Type::list(Type::Bool)), ("size", Type::Number)]);
    let state = json!({ "name": "a", "removed": { "deep": [1] }, "size": 2.5 });
    let expected = Value::object([("name", Value::from("a")), ("added", Value::Null), ("size", Value::from(2.5))]);
    assert_eq!(from_json(&state, &kind).unwrap(), expected);
}
