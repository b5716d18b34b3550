//! Kubernetes quantities (`100m`, `1Gi`, `2e3`), parsed and printed as Go's apimachinery does.
//!
//! A quantity is a count of billionths in an `i128`, so sums are exact; what is finer than a billionth is rounded away from zero, as Go
//! does. Equality, order and hash look at the amount only; the notation is kept for printing.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

const NANO: i128 = 1_000_000_000;
/// Go caps binary quantities at the largest `int64`.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
/// More digits than this cannot change the answer and only cost time (an `i128` of billionths holds 29 digits before the point).
const MAX_DIGITS: usize = 512;

/// The pattern by which the API server checks quantities.
pub const PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// An exact amount of a resource, in the notation that it was written in.
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nano: i128,
    notation: Notation,
}

/// The family of suffixes that a quantity is printed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// `n u m k M G T P E`
    #[default]
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
    /// `e3`, `e-6`
    Exponent,
}

/// Says why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error("{text:?} is not a quantity: write a number with an optional suffix, such as 100m, 2, 1.5Gi or 1e3")]
    Malformed { text: String },
    #[error(
        "{text:?} has an unknown suffix {suffix:?}: use one of n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent such as e3"
    )]
    Suffix { text: String, suffix: String },
    #[error("{text:?} is too large")]
    OutOfRange { text: String },
}

impl Quantity {
    pub const ZERO: Self = Self { nano: 0, notation: Notation::Decimal };

    /// Returns a quantity of whole units in decimal notation.
    #[must_use]
    pub const fn from_units(units: i64) -> Self {
        Self { nano: units as i128 * NANO, notation: Notation::Decimal }
    }

    /// Returns a quantity of thousandths, as CPU is counted.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self { nano: millis as i128 * 1_000_000, notation: Notation::Decimal }
    }

    /// Returns a quantity of bytes, printed with binary suffixes.
    #[must_use]
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nano: bytes as i128 * NANO, notation: Notation::Binary }
    }

    /// Returns the amount in billionths.
    #[must_use]
    pub const fn nanos(self) -> i128 {
        self.nano
    }

    /// Returns the amount in thousandths, rounded up, saturating at the ends of `i64`.
    #[must_use]
    pub fn millis(self) -> i64 {
        saturate(div_ceil(self.nano, 1_000_000))
    }

    /// Returns the amount in whole units, rounded up, saturating at the ends of `i64`.
    #[must_use]
    pub fn units(self) -> i64 {
        saturate(div_ceil(self.nano, NANO))
    }

    /// Returns the amount as a floating-point number, for prices and reports.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.nano as f64 / NANO as f64
    }

    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.nano == 0
    }

    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.nano < 0
    }

    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.nano > 0
    }

    /// Returns the notation that the quantity prints in.
    #[must_use]
    pub const fn notation(self) -> Notation {
        self.notation
    }

    /// Returns the same amount in another notation.
    #[must_use]
    pub const fn with_notation(self, notation: Notation) -> Self {
        Self { nano: self.nano, notation }
    }

    /// Returns the amount times a whole number, saturating.
    #[must_use]
    pub const fn times(self, factor: i64) -> Self {
        Self { nano: self.nano.saturating_mul(factor as i128), notation: self.notation }
    }

    fn combine(self, other: Self, nano: i128) -> Self {
        // As in Go, nothing plus something takes the something's notation.
        let notation = if self.is_zero() { other.notation } else { self.notation };
        Self { nano, notation }
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Divides, rounding towards positive infinity.
fn div_ceil(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nano.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.combine(other, self.nano.saturating_add(other.nano))
    }
}

impl Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.combine(other, self.nano.saturating_sub(other.nano))
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Neg for Quantity {
    type Output = Self;
    fn neg(self) -> Self {
        Self { nano: self.nano.saturating_neg(), notation: self.notation }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || ParseQuantityError::Malformed { text: text.to_owned() };
        if text.is_empty() || text.len() > MAX_DIGITS {
            return Err(malformed());
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        let (scale, notation) = scale_of(suffix).ok_or_else(|| {
            if is_suffix_like(suffix) {
                ParseQuantityError::Suffix { text: text.to_owned(), suffix: suffix.to_owned() }
            } else {
                malformed()
            }
        })?;
        // As in Go, a suffix alone is zero, unless it is so large or so small that Go takes its slow path.
        if whole.is_empty() && fraction.is_empty() && scale.is_slow() {
            return Err(malformed());
        }
        let magnitude = magnitude(whole, fraction, scale)
            .ok_or_else(|| ParseQuantityError::OutOfRange { text: text.to_owned() })?;
        let magnitude = if notation == Notation::Binary { magnitude.min(MAX_BINARY) } else { magnitude };
        let notation = match notation {
            // As in Go: less than one of a binary unit prints as a decimal.
            Notation::Binary if magnitude > 0 && magnitude < NANO => Notation::Decimal,
            other => other,
        };
        Ok(Self { nano: if negative { -magnitude } else { magnitude }, notation })
    }
}

#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Scale {
    const fn is_slow(self) -> bool {
        match self {
            Self::Ten(power) => power < -9,
            Self::Two(power) => power >= 50,
        }
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()))
}

fn is_suffix_like(suffix: &str) -> bool {
    let tail = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = tail.strip_prefix(['+', '-']).unwrap_or(tail);
    digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn scale_of(suffix: &str) -> Option<(Scale, Notation)> {
    let decimal = |power| Some((Scale::Ten(power), Notation::Decimal));
    let binary = |power| Some((Scale::Two(power), Notation::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            Some((Scale::Ten(exponent), Notation::Exponent))
        }
    }
}

/// Returns `whole.fraction * scale` in billionths, rounded up; nothing when it does not fit.
fn magnitude(whole: &str, fraction: &str, scale: Scale) -> Option<i128> {
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
    let first = digits.iter().position(|digit| *digit != 0);
    let Some(first) = first else { return Some(0) };
    let fraction_len = i64::try_from(fraction.len()).ok()?;
    match scale {
        Scale::Ten(power) => {
            // The value is 0.d1d2d3... * 10^point in billionths.
            let point = i64::try_from(digits.len()).ok()? - fraction_len + i64::from(power) + 9;
            decimal_magnitude(&digits[first..], point - i64::try_from(first).ok()?)
        }
        Scale::Two(power) => {
            // 512 digits cannot be held exactly; the whole part decides first, then the fraction with what an i128 can hold.
            let whole_value = decimal_magnitude(
                digits[..whole.len()].iter().position(|d| *d != 0).map_or(&[][..], |at| &digits[at..whole.len()]),
                i64::try_from(whole.trim_start_matches('0').len()).ok()?,
            );
            let factor = 1_i128 << power;
            let whole_nanos = whole_value
                .and_then(|value| value.checked_mul(factor))
                .and_then(|value| value.checked_mul(NANO))
                .unwrap_or(MAX_BINARY);
            Some(whole_nanos.saturating_add(binary_fraction(&digits[whole.len()..], factor)))
        }
    }
}

/// Returns the integer `0.digits * 10^point`, rounded up; `digits` begins with a non-zero digit.
fn decimal_magnitude(digits: &[u8], point: i64) -> Option<i128> {
    if digits.is_empty() {
        return Some(0);
    }
    if point <= 0 {
        return Some(1);
    }
    let point = usize::try_from(point).ok().filter(|point| *point <= 38)?;
    let mut value = 0_i128;
    for position in 0..point {
        let digit = digits.get(position).copied().unwrap_or(0);
        value = value.checked_mul(10)?.checked_add(i128::from(digit))?;
    }
    let remainder = digits.iter().skip(point).any(|digit| *digit != 0);
    value.checked_add(i128::from(remainder))
}

/// Returns `0.digits * factor` in billionths, rounded up: long division by ten, digit by digit from the end.
fn binary_fraction(digits: &[u8], factor: i128) -> i128 {
    // value = sum(d_i * factor * NANO / 10^i); carried exactly as (quotient, any remainder so far).
    let unit = factor * NANO;
    let mut carry = 0_i128;
    let mut inexact = false;
    for digit in digits.iter().rev() {
        let sum = carry + i128::from(*digit) * unit;
        inexact |= sum % 10 != 0;
        carry = sum / 10;
    }
    carry + i128::from(inexact)
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return formatter.write_str("0");
        }
        let whole = self.nano % NANO == 0;
        let small = self.nano.abs() < 1024 * NANO;
        match self.notation {
            Notation::Binary if whole && !small => self.fmt_binary(formatter),
            Notation::Binary | Notation::Decimal => self.fmt_decimal(formatter, false),
            Notation::Exponent => self.fmt_decimal(formatter, true),
        }
    }
}

impl Quantity {
    fn fmt_binary(self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let mut value = self.nano / NANO;
        let mut step = 0;
        while step + 1 < SUFFIXES.len() && value % 1024 == 0 {
            value /= 1024;
            step += 1;
        }
        write!(formatter, "{value}{}", SUFFIXES[step])
    }

    fn fmt_decimal(self, formatter: &mut fmt::Formatter<'_>, exponent: bool) -> fmt::Result {
        const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let mut value = self.nano;
        let mut step = 0;
        // Go's decimal suffixes end at E; larger amounts keep their zeros.
        while (exponent || step + 1 < SUFFIXES.len()) && value % 1000 == 0 {
            value /= 1000;
            step += 1;
        }
        if exponent {
            let power = step as i64 * 3 - 9;
            if power == 0 { write!(formatter, "{value}") } else { write!(formatter, "{value}e{power}") }
        } else {
            write!(formatter, "{value}{}", SUFFIXES[step])
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntOrString;

        impl Visitor<'_> for IntOrString {
            type Value = Quantity;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a quantity such as 100m or 2Gi")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, units: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(units))
            }

            fn visit_u64<E: de::Error>(self, units: u64) -> Result<Quantity, E> {
                i64::try_from(units).map(Quantity::from_units).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, units: f64) -> Result<Quantity, E> {
                units.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(IntOrString)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "pattern": PATTERN,
            "x-kubernetes-int-or-string": true
        })
    }
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = ParseQuantityError;
    fn try_from(value: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Result<Self, Self::Error> {
        value.0.parse()
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(value: Quantity) -> Self {
        Self(value.to_string())
    }
}
