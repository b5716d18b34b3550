//! The price file: what an account really pays, where that differs from what EC2 publishes (discounts, Savings Plans, another currency).

use serde::Deserialize;

use crate::catalogue::{CapacityType, Price};

/// Parts of a whole in which multipliers and discounts are kept, so that prices stay exact integers.
const WHOLE: u64 = 1_000_000;
/// The largest multiplier: no currency's unit is worth so little (a dollar was some 100,000 Lebanese pounds in 2025).
const MAX_MULTIPLIER: f64 = 1e6;
/// Prices stay below this ([`Price::from_dollars`]).
const MOST_DOLLARS: f64 = 1e9;

/// Says how published prices become the account's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceFile {
    /// In millionths; `None` leaves prices as they are.
    multiplier: Option<u64>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    types: Vec<String>,
    zones: Vec<String>,
    capacity_types: Vec<CapacityType>,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Millionths of the price that are left.
    Share(u64),
    /// The price itself.
    Price(Price),
}

/// A price file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no YAML or JSON of the right shape.
    #[error("{0}")]
    Shape(String),
    /// A figure is out of its range.
    #[error("{field}: {value} is not from {from} to {to}")]
    Range { field: String, value: f64, from: f64, to: f64 },
    /// A rule says nothing, or two things.
    #[error("rules[{0}]: give either discountPercent or pricePerHour")]
    Effect(usize),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    multiplier: Option<f64>,
    #[serde(default)]
    rules: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenRule {
    #[serde(default)]
    types: Vec<String>,
    #[serde(default)]
    zones: Vec<String>,
    #[serde(default)]
    capacity_types: Vec<CapacityType>,
    discount_percent: Option<f64>,
    price_per_hour: Option<f64>,
}

impl PriceFile {
    /// Reads a price file (YAML or JSON).
    ///
    /// # Errors
    /// See [`Error`]; each names the field.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let written: Written = serde_saphyr::from_str(text).map_err(|error| Error::Shape(error.to_string()))?;
        let multiplier = written.multiplier.map(|value| millionths("multiplier", value, MAX_MULTIPLIER)).transpose()?;
        let rules = written.rules.into_iter().enumerate().map(|(index, rule)| rule.read(index));
        Ok(Self { multiplier, rules: rules.collect::<Result<_, _>>()? })
    }

    /// Returns what an offering costs the account, by the first rule that fits it, and whether the file itself gives the price.
    #[must_use]
    pub fn price(
        &self,
        instance_type: &str,
        zone: &str,
        capacity_type: CapacityType,
        published: Price,
    ) -> (Price, bool) {
        let converted = self.multiplier.map_or(published, |factor| published.scaled(factor, WHOLE));
        let rule = self.rules.iter().find(|rule| rule.fits(instance_type, zone, capacity_type));
        match rule.map(|rule| rule.effect) {
            Some(Effect::Share(left)) => (converted.scaled(left, WHOLE), false),
            Some(Effect::Price(price)) => (price, true),
            None => (converted, false),
        }
    }
}

impl WrittenRule {
    fn read(self, index: usize) -> Result<Rule, Error> {
        let effect = match (self.discount_percent, self.price_per_hour) {
            (Some(percent), None) => {
                let field = format!("rules[{index}].discountPercent");
                let discount = millionths(&field, percent, 100.0)? / 100;
                Effect::Share(WHOLE - discount)
            }
            (None, Some(price)) => {
                let field = format!("rules[{index}].pricePerHour");
                let range = || Error::Range { field, value: price, from: 0.0, to: MOST_DOLLARS };
                Effect::Price(Price::from_dollars(price).ok_or_else(range)?)
            }
            _ => return Err(Error::Effect(index)),
        };
        Ok(Rule { types: self.types, zones: self.zones, capacity_types: self.capacity_types, effect })
    }
}

impl Rule {
    /// An empty list fits everything.
    fn fits(&self, instance_type: &str, zone: &str, capacity_type: CapacityType) -> bool {
        let any = |patterns: &[String], text: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern.as_bytes(), text.as_bytes()))
        };
        any(&self.types, instance_type)
            && any(&self.zones, zone)
            && (self.capacity_types.is_empty() || self.capacity_types.contains(&capacity_type))
    }
}

fn millionths(field: &str, value: f64, to: f64) -> Result<u64, Error> {
    if !(0.0..=to).contains(&value) {
        return Err(Error::Range { field: field.to_owned(), value, from: 0.0, to });
    }
    Ok((value * WHOLE as f64).round() as u64)
}

/// Matches text against a pattern in which `*` stands for any characters and `?` for one. Only the last star is ever tried anew, so that
/// time is bounded by the product of both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, read));
                at += 1;
            }
            (Some(wanted), _) if *wanted == b'?' || *wanted == text[read] => {
                at += 1;
                read += 1;
            }
            (_, Some((stood, taken))) => {
                star = Some((stood, taken + 1));
                at = stood + 1;
                read = taken + 1;
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|left| *left == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
multiplier: 0.9
rules:
- types: [c7g.large]
  zones: [us-east-1a]
  pricePerHour: 0.05
- types: ['m7i.*', 'm?a.*']
  capacityTypes: [on-demand]
  discountPercent: 28
- types: ['*7*n.?large*']
  pricePerHour: 0.000001
";

    #[test]
    fn the_first_rule_that_fits_decides() {
        let file = PriceFile::parse(FILE).expect("a price file");
        let (spot, on_demand) = (CapacityType::Spot, CapacityType::OnDemand);
        for (kind, zone, capacity_type, expected) in [
            ("c7g.large", "us-east-1a", spot, (50_000, true)),
            ("c7g.large", "us-east-1b", spot, (90_000, false)),
            ("m7i.large", "us-east-1b", on_demand, (64_800, false)),
            ("m5a.large", "us-east-1b", on_demand, (64_800, false)),
            ("m7i.large", "us-east-1b", spot, (90_000, false)),
            ("m7i-flex.large", "us-east-1b", on_demand, (90_000, false)),
            ("c7gn.xlarge", "us-east-1a", spot, (1, true)),
            ("c7gn.2xlarge", "us-east-1a", spot, (90_000, false)),
        ] {
            let (price, given) = file.price(kind, zone, capacity_type, Price::from_micro_dollars(100_000));
            assert_eq!((price.micro_dollars(), given), expected, "{kind} {zone} {capacity_type}");
        }
    }

    #[test]
    fn without_a_file_prices_stay_as_they_are() {
        let price = Price::from_micro_dollars(123_457);
        assert_eq!(PriceFile::default().price("t", "z", CapacityType::Spot, price), (price, false));
        assert_eq!(PriceFile::parse("{}").expect("empty"), PriceFile::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("multiplier: -1", "multiplier: -1 is not from 0"),
            ("multiplier: .nan", "multiplier"),
            ("rules: [{types: [a]}]", "rules[0]"),
            ("rules: [{discountPercent: 1, pricePerHour: 2}]", "rules[0]"),
            ("rules: [{discountPercent: 101}]", "rules[0].discountPercent"),
            ("rules: [{pricePerHour: -1}]", "rules[0].pricePerHour"),
            ("rules: [{pricePerHour: 2000000000}]", "2000000000 is not from 0 to 1000000000"),
            ("rules: [{discount: 1}]", "discount"),
            ("rules: [{capacityTypes: [cheap], discountPercent: 1}]", "cheap"),
        ] {
            let error = PriceFile::parse(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
