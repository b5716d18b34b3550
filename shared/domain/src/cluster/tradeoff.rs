//! What an operator trades price for: nodes that are not too large, types to turn to, pods that stay where they are, and time to leave.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;

use crate::api::go_duration;
use crate::api::hash::fnv1;

/// Holds the largest share of a pool's pods that one new node may hold, in percent from 1 to 100. The default, 100, bounds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodShare(u32);

/// Holds how much dearer than the cheapest the types may be that a new node may become, in percent. The default is 100: up to twice the price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PriceTolerance(u32);

/// Holds what share of its price a node that is full of pods must save to be given up, in percent from 0 to 100; one with fewer pods for its
/// price must save proportionally less. The default is 45: decision 0007 tells what it costs and spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConsolidationFloor(u32);

/// Reports text that is no percentage in range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no percentage from {least}% to {most}%, such as {example}%")]
pub struct ParsePercentageError {
    text: String,
    least: u32,
    most: u32,
    example: u32,
}

/// A hundred times the cheapest price: no type that is dearer is worth waiting for less.
const MOST_TOLERANCE: u32 = 10_000;

fn percentage(text: &str, least: u32, most: u32, example: u32) -> Result<u32, ParsePercentageError> {
    let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let read = digits.and_then(|digits| digits.parse().ok()).filter(|percent| (least..=most).contains(percent));
    read.ok_or_else(|| ParsePercentageError { text: text.to_owned(), least, most, example })
}

impl PodShare {
    /// Answers how many of so many pods one node may hold: the share rounded up, at least one.
    pub fn of(self, pods: u32) -> u32 {
        let share = (u64::from(pods) * u64::from(self.0)).div_ceil(100);
        u32::try_from(share).unwrap_or(u32::MAX).max(1)
    }

    /// Says whether it bounds anything.
    pub const fn bounds(self) -> bool {
        self.0 < 100
    }
}

impl Default for PodShare {
    fn default() -> Self {
        PodShare(100)
    }
}

impl FromStr for PodShare {
    type Err = ParsePercentageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        percentage(text, 1, 100, 25).map(PodShare)
    }
}

impl fmt::Display for PodShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl PriceTolerance {
    /// Answers the factor by which a price may exceed the cheapest, in hundredths.
    pub const fn factor_percent(self) -> u64 {
        100 + self.0 as u64
    }
}

impl Default for PriceTolerance {
    fn default() -> Self {
        PriceTolerance(100)
    }
}

impl FromStr for PriceTolerance {
    type Err = ParsePercentageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        percentage(text, 0, MOST_TOLERANCE, 20).map(PriceTolerance)
    }
}

impl fmt::Display for PriceTolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl ConsolidationFloor {
    /// Asks nothing for the pods that a move evicts.
    pub const NONE: ConsolidationFloor = ConsolidationFloor(0);

    /// Answers the share in thousandths.
    pub const fn permille(self) -> u64 {
        self.0 as u64 * 10
    }
}

impl Default for ConsolidationFloor {
    fn default() -> Self {
        ConsolidationFloor(45)
    }
}

impl FromStr for ConsolidationFloor {
    type Err = ParsePercentageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        percentage(text, 0, 100, 25).map(ConsolidationFloor)
    }
}

impl fmt::Display for ConsolidationFloor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// Holds how long after `expireAfter` a node may still be replaced gently: inside budgets, with its replacement first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpirationGrace(SignedDuration);

/// Reports text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no length of time, such as 24h or 90m")]
pub struct ParseGraceError(String);

impl ExpirationGrace {
    /// Answers how long it is.
    pub const fn length(self) -> SignedDuration {
        self.0
    }

    /// Answers when within it the node of a claim begins to be replaced: by its UID some time in the first half, so that nodes that came
    /// together do not leave together.
    pub fn begin(self, uid: &str) -> SignedDuration {
        // once more, since the last letters of a text hardly change its hash
        let hash = fnv1(&fnv1(uid.as_bytes()).to_le_bytes());
        let share = i32::try_from(hash % 1000).unwrap_or_default();
        (self.0 / 2000).saturating_mul(share)
    }
}

impl FromStr for ExpirationGrace {
    type Err = ParseGraceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = go_duration(text).filter(|length| !length.is_negative());
        read.map(ExpirationGrace).ok_or_else(|| ParseGraceError(text.to_owned()))
    }
}
