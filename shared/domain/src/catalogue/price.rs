//! Prices per hour in integer micro-dollars, and the documented estimate for types whose price is not known.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use super::InstanceFacts;

/// Holds a price per hour in micro-dollars (1 000 000 = one dollar an hour); integers keep sums and comparisons exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Price(u64);

impl Price {
    /// Costs nothing.
    pub const ZERO: Price = Price(0);

    /// Makes a price from micro-dollars per hour.
    pub const fn from_micro_dollars(micro: u64) -> Self {
        Price(micro)
    }

    /// Makes a price from dollars per hour, rounded to the nearest micro-dollar; `None` when negative or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        (dollars.is_finite() && (0.0..1e12).contains(&dollars)).then(|| Price((dollars * 1e6).round() as u64))
    }

    /// Answers micro-dollars per hour.
    pub const fn micro_dollars(self) -> u64 {
        self.0
    }

    /// Answers dollars per hour, for display.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Subtracts, stopping at zero.
    pub const fn saturating_sub(self, other: Price) -> Price {
        Price(self.0.saturating_sub(other.0))
    }

    /// Takes `numerator/denominator` of the price, rounded down.
    pub const fn scaled(self, numerator: u64, denominator: u64) -> Price {
        Price((self.0 as u128 * numerator as u128 / denominator as u128) as u64)
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

/// Estimates the on-demand price of a type: 0.0215 $/h a vCPU and 0.0029 $/h a GiB (0.8 of that for arm64), and 0.9 $/h
/// for each GPU or accelerator. A fit to no bill: it only orders types sensibly until a price is known, and prices the sandbox.
pub fn estimate_on_demand(facts: &InstanceFacts) -> Price {
    let host = 21_500 * u64::from(facts.vcpus) + 2_900 * facts.memory_mib / 1024;
    let host = if facts.arch == super::Arch::Arm64 { host * 8 / 10 } else { host };
    let gpus = facts.gpu.as_ref().map_or(0, |gpu| u64::from(gpu.count));
    let accelerators = facts.accelerator.as_ref().map_or(0, |device| u64::from(device.count));
    Price(host + 900_000 * (gpus + accelerators))
}

/// Estimates the spot price of a type in a zone: 0.35 of on-demand, times 1.00, 1.02 or 0.98 in zones a, b and c.
pub fn estimate_spot(on_demand: Price, zone: &str) -> Price {
    let factor = match zone.as_bytes().last() {
        Some(b'b') => 102,
        Some(b'c') => 98,
        _ => 100,
    };
    on_demand.scaled(35 * factor, 100 * 100)
}
