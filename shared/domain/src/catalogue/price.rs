//! Prices per hour in integer nano-dollars, and where they come from.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

const NANOS_PER_MICRO: u64 = 1_000;

/// Says where a price comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriceSource {
    /// From EC2 or from a file of prices.
    #[default]
    Published,
    /// Guessed by a documented rule, since nobody told it: show it as a guess.
    Estimated,
    /// Set or adjusted by a NodeOverlay.
    Overlaid,
}

impl PriceSource {
    /// Answers the word that is shown beside a price.
    pub const fn as_str(self) -> &'static str {
        match self {
            PriceSource::Published => "published",
            PriceSource::Estimated => "estimated",
            PriceSource::Overlaid => "overlaid",
        }
    }
}

/// Holds a price per hour in nano-dollars (1 000 000 000 = one dollar an hour); integers keep sums and comparisons exact, and a nano is
/// fine enough to order what is nearly free (instances of a capacity reservation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Price(u64);

impl Price {
    /// Costs nothing.
    pub const ZERO: Price = Price(0);

    /// Makes a price from micro-dollars per hour.
    pub const fn from_micro_dollars(micro: u64) -> Self {
        Price(micro.saturating_mul(NANOS_PER_MICRO))
    }

    /// Makes a price from nano-dollars per hour.
    pub const fn from_nano_dollars(nano: u64) -> Self {
        Price(nano)
    }

    /// Makes a price from dollars per hour, rounded to the nearest nano-dollar; `None` when negative, beyond a billion or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        (dollars.is_finite() && (0.0..1e9).contains(&dollars)).then(|| Price((dollars * 1e9).round() as u64))
    }

    /// Answers micro-dollars per hour, rounded up: what costs anything never looks free.
    pub const fn micro_dollars(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MICRO)
    }

    /// Answers nano-dollars per hour.
    pub const fn nano_dollars(self) -> u64 {
        self.0
    }

    /// Answers dollars per hour, for display.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Subtracts, stopping at zero.
    pub const fn saturating_sub(self, other: Price) -> Price {
        Price(self.0.saturating_sub(other.0))
    }

    /// Takes `numerator/denominator` of the price, rounded down; stops at the largest price.
    pub const fn scaled(self, numerator: u64, denominator: u64) -> Price {
        let scaled = self.0 as u128 * numerator as u128 / denominator as u128;
        Price(if scaled > u64::MAX as u128 { u64::MAX } else { scaled as u64 })
    }
}

impl Add for Price {
    type Output = Price;
    fn add(self, other: Price) -> Price {
        Price(self.0.saturating_add(other.0))
    }
}

impl Sum for Price {
    fn sum<I: Iterator<Item = Price>>(prices: I) -> Price {
        prices.fold(Price::ZERO, Add::add)
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${:.4}/h", self.dollars())
    }
}
