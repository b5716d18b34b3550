//! What an operator trades price for: nodes that are not too large, types to turn to, pods that stay where they are, and time to leave.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;

use crate::api::go_duration;
use crate::api::hash::fnv1;

/// Holds a whole number of percent in a range; `DEFAULT` where nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent<const LEAST: u32, const MOST: u32, const DEFAULT: u32>(u32);

/// The largest share of a pool's pods that one new node may hold. The default bounds nothing.
pub type PodShare = Percent<1, 100, 100>;

/// How much dearer than the cheapest the types may be that a new node may become: by default up to twice the price. No type that costs more
/// than a hundred times as much is worth waiting for less.
pub type PriceTolerance = Percent<0, 10_000, 100>;

/// What share of its price a node that is full of pods must save to be given up; one with fewer pods for its price must save proportionally
/// less. Decision 0007 tells what the default costs and spares.
pub type ConsolidationFloor = Percent<0, 100, 45>;

/// Reports text that is no percentage in range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no percentage from {least}% to {most}%, such as 25%")]
pub struct ParsePercentageError {
    text: String,
    least: u32,
    most: u32,
}

impl<const LEAST: u32, const MOST: u32, const DEFAULT: u32> Default for Percent<LEAST, MOST, DEFAULT> {
    fn default() -> Self {
        Percent(DEFAULT)
    }
}

impl<const LEAST: u32, const MOST: u32, const DEFAULT: u32> FromStr for Percent<LEAST, MOST, DEFAULT> {
    type Err = ParsePercentageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let read = digits.and_then(|digits| digits.parse().ok()).filter(|percent| (LEAST..=MOST).contains(percent));
        read.map(Percent).ok_or_else(|| ParsePercentageError { text: text.to_owned(), least: LEAST, most: MOST })
    }
}

impl<const LEAST: u32, const MOST: u32, const DEFAULT: u32> fmt::Display for Percent<LEAST, MOST, DEFAULT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
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

impl PriceTolerance {
    /// Answers the factor by which a price may exceed the cheapest, in hundredths.
    pub const fn factor_percent(self) -> u64 {
        100 + self.0 as u64
    }
}

impl ConsolidationFloor {
    /// Asks nothing for the pods that a move evicts.
    pub const NONE: ConsolidationFloor = Percent(0);

    /// Answers the share in thousandths.
    pub const fn permille(self) -> u64 {
        self.0 as u64 * 10
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
