//! Resources as short vectors of integers, one place for each resource that any pod asks for.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::resources::Resources;

/// Amounts in thousandths of a unit, in the order of [`Dims`].
pub(crate) type Amounts = SmallVec<[i64; 6]>;

/// Stands for a pod's place on a node of a pool that bounds the share of its pods on one node. No object names it.
pub(crate) const PLACE: &str = "karp.sh/place";
/// One place, and more places than pods.
const ONE: i64 = 1000;
const ABUNDANT: i64 = i64::MAX / 2;

/// Names the resources that a problem speaks of, in order; [`PLACE`], if it is there, comes last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dims(Vec<String>);

impl Dims {
    /// Collects the resources that are asked for.
    pub(crate) fn of<'a>(requests: impl IntoIterator<Item = &'a Resources>) -> Self {
        let mut names = BTreeSet::new();
        for request in requests {
            for (name, amount) in request.iter() {
                if amount.is_positive() && !names.contains(name) {
                    names.insert(name.to_owned());
                }
            }
        }
        Dims(names.into_iter().collect())
    }

    /// Adds [`PLACE`]: room has it in plenty and pods take none, unless they are counted.
    pub(crate) fn with_places(mut self) -> Self {
        self.0.push(PLACE.to_owned());
        self
    }

    /// Sets how many places there are, or are taken.
    pub(crate) fn set_places(&self, amounts: &mut Amounts, count: u32) {
        if self.has_places()
            && let Some(places) = amounts.last_mut()
        {
            *places = i64::from(count) * ONE;
        }
    }

    /// Says whether places are counted.
    pub(crate) fn has_places(&self) -> bool {
        self.0.last().is_some_and(|name| name == PLACE)
    }

    /// Answers the names.
    pub(crate) fn names(&self) -> &[String] {
        &self.0
    }

    /// Reads what is asked for, rounded up.
    pub(crate) fn demand(&self, resources: &Resources) -> Amounts {
        self.0.iter().map(|name| resources.get(name).millis()).collect()
    }

    /// Reads what is there, rounded down.
    pub(crate) fn supply(&self, resources: &Resources) -> Amounts {
        let floor = |nanos: i128| i64::try_from(nanos.div_euclid(1_000_000)).unwrap_or(i64::MAX);
        let of = |name: &String| if name == PLACE { ABUNDANT } else { floor(resources.get(name).nanos()) };
        self.0.iter().map(of).collect()
    }
}

/// Takes `times` the second from the first.
pub(crate) fn take(from: &mut [i64], amounts: &[i64], times: i64) {
    for (have, less) in from.iter_mut().zip(amounts) {
        *have = have.saturating_sub(less.saturating_mul(times));
    }
}

/// Says whether a request fits once.
#[inline]
pub(crate) fn fits(free: &[i64], request: &[i64]) -> bool {
    // without branches: nearly all questions are about few resources
    free.iter().zip(request).fold(true, |fits, (have, want)| fits & ((*want <= 0) | (have >= want)))
}

/// Answers how many times a request fits; a resource that is not asked for does not matter.
#[inline]
pub(crate) fn copies(free: &[i64], request: &[i64]) -> u32 {
    let times = free.iter().zip(request).filter(|(_, want)| **want > 0).map(|(have, want)| (have / want).max(0));
    u32::try_from(times.min().unwrap_or(i64::from(u32::MAX))).unwrap_or(u32::MAX)
}
