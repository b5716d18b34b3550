//! Resources as short vectors of integers, one place for each resource that any pod asks for.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::resources::Resources;

/// Amounts in thousandths of a unit, in the order of [`Dims`].
pub(crate) type Amounts = SmallVec<[i64; 6]>;

/// Stands for a pod's place on a node of a pool that bounds the share of its pods on one node. No object names it.
pub(crate) const PLACE: &str = "karp.sh/place";
/// One place or volume.
const ONE: i64 = 1000;
/// More places or volumes than pods ask for.
const ABUNDANT: i64 = i64::MAX / 2;

/// Names the resources that a problem speaks of, in order: what pods ask for, then volumes by CSI driver, then [`PLACE`], if it is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dims {
    names: Vec<String>,
    volumes: Range<usize>,
}

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
        let names: Vec<String> = names.into_iter().collect();
        Dims { volumes: names.len()..names.len(), names }
    }

    /// Adds the volumes of CSI drivers, before places: room has them in plenty and pods take none, unless it is set.
    pub(crate) fn with_volumes(mut self, drivers: &[Arc<str>]) -> Self {
        self.names.extend(drivers.iter().map(ToString::to_string));
        self.volumes.end = self.names.len();
        self
    }

    /// Sets how many volumes of each driver there may be, or are asked for, where it is known.
    pub(crate) fn set_volumes(&self, amounts: &mut Amounts, count: impl Fn(&str) -> Option<u32>) {
        for at in self.volumes.clone() {
            if let Some(count) = count(&self.names[at]) {
                amounts[at] = i64::from(count) * ONE;
            }
        }
    }

    /// Answers how many volumes of each driver amounts say, where they are bounded.
    pub(crate) fn volumes(&self, amounts: &Amounts) -> impl Iterator<Item = (usize, &str, u32)> {
        self.volumes.clone().filter_map(|at| Some((at, &*self.names[at], whole(amounts[at])?)))
    }

    /// Adds [`PLACE`]: room has it in plenty and pods take none, unless they are counted.
    pub(crate) fn with_places(mut self) -> Self {
        self.names.push(PLACE.to_owned());
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
        self.names.last().is_some_and(|name| name == PLACE)
    }

    /// Answers how many resources pods ask for; volumes and places come after those.
    pub(crate) const fn resources(&self) -> usize {
        self.volumes.start
    }

    /// Answers the names.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads what is asked for, rounded up.
    pub(crate) fn demand(&self, resources: &Resources) -> Amounts {
        let counted = |at: usize| !self.volumes.contains(&at);
        let of = |(at, name): (usize, &String)| if counted(at) { resources.get(name).millis() } else { 0 };
        self.names.iter().enumerate().map(of).collect()
    }

    /// Reads what is there, rounded down.
    pub(crate) fn supply(&self, resources: &Resources) -> Amounts {
        let floor = |nanos: i128| i64::try_from(nanos.div_euclid(1_000_000)).unwrap_or(i64::MAX);
        let of = |(at, name): (usize, &String)| match name == PLACE || self.volumes.contains(&at) {
            true => ABUNDANT,
            false => floor(resources.get(name).nanos()),
        };
        self.names.iter().enumerate().map(of).collect()
    }
}

/// Answers how many whole ones an amount is; none when it is not bounded.
pub(crate) fn whole(amount: i64) -> Option<u32> {
    u32::try_from((amount / ONE).max(0)).ok()
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
