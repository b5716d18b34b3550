//! NodeOverlays: prices and capacity that the operator knows better than EC2.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use super::{Catalogue, InstanceType, Offering, Price, PriceSource};
use crate::requirement::{Requirement, Requirements, Undefined};
use crate::resources::Resources;

/// Describes a NodeOverlay as the catalogue applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The object's name; it decides between equal weights.
    pub name: Arc<str>,
    /// Which types and offerings it is about.
    pub requirements: Requirements,
    /// The heavier one wins; 0 when not set.
    pub weight: u32,
    /// What becomes of the price.
    pub price: Option<PriceChange>,
    /// Extended resources that nodes have beyond what EC2 tells.
    pub capacity: Resources,
}

impl Overlay {
    /// Its place among others: the heaviest first, of equal weights the later name.
    pub fn rank(&self) -> impl Ord + use<> {
        (Reverse(self.weight), Reverse(self.name.clone()))
    }
}

/// Says what becomes of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceChange {
    /// It is this.
    To(Price),
    /// It changes by nano-dollars an hour.
    By(i64),
    /// It changes by millionths of itself.
    Share(i64),
}

/// Reports a price change that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "price change {0:?}: a price such as 0.05, a difference such as +0.01 or -0.01, or a share such as +10% or -5%"
)]
pub struct ParsePriceChangeError(pub String);

impl FromStr for PriceChange {
    type Err = ParsePriceChangeError;

    /// Reads `spec.price` (no sign) or `spec.priceAdjustment` (a sign, perhaps a percent sign).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParsePriceChangeError(text.to_owned());
        let plain = |digits: &str, scale: f64| {
            let decimal = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let value = digits.parse::<f64>().ok().filter(|value| decimal && *value < 1e9);
            value.map(|value| (value * scale).round() as i64).ok_or_else(wrong)
        };
        let (sign, rest) = match text.as_bytes().first() {
            Some(b'+') => (1, &text[1..]),
            Some(b'-') => (-1, &text[1..]),
            _ => return Ok(PriceChange::To(Price::from_nano_dollars(plain(text, 1e9)?.unsigned_abs()))),
        };
        match rest.strip_suffix('%') {
            Some(percent) => Ok(PriceChange::Share(sign * plain(percent, 1e4)?)),
            None => Ok(PriceChange::By(sign * plain(rest, 1e9)?)),
        }
    }
}

impl PriceChange {
    /// Answers the changed price, which is never below zero.
    pub fn of(self, price: Price) -> Price {
        let old = i128::from(price.nano_dollars());
        let new = match self {
            PriceChange::To(price) => return price,
            PriceChange::By(nanos) => old + i128::from(nanos),
            PriceChange::Share(millionths) => old + old * i128::from(millionths) / 1_000_000,
        };
        Price::from_nano_dollars(u64::try_from(new.max(0)).unwrap_or(u64::MAX))
    }
}

/// Reports that an overlay was left out since one of equal weight says something about the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayConflict {
    /// The overlay that was left out.
    pub overlay: Arc<str>,
    /// The overlay of equal weight that came first.
    pub with: Arc<str>,
    /// The first instance type on which they meet.
    pub instance_type: Arc<str>,
}

/// Holds a catalogue after overlays, and the overlays that were left out.
#[derive(Clone, Debug)]
pub struct Overlaid {
    /// The catalogue with changed prices and capacities.
    pub catalogue: Catalogue,
    /// Overlays of no effect, in the order in which they were looked at.
    pub conflicts: Vec<OverlayConflict>,
}

/// Who was the last to speak of a price or a resource.
type Last = (u32, Arc<str>);

/// What the overlays make of one type.
#[derive(Default)]
struct Change {
    /// For each offering, by place: the change, and the lightest overlay that speaks of it.
    prices: BTreeMap<usize, (PriceChange, Last)>,
    capacity: Resources,
    resources: BTreeMap<String, Last>,
}

impl Catalogue {
    /// Applies overlays for the nodes of one pool, whose requirements `pool` holds, and answers a copy that shares what stays equal. The heaviest
    /// overlay decides on an offering's price and on each resource; of equal weights the later name comes first, and the other is left
    /// out as a whole: what two overlays of equal weight say about the same is a mistake, not a choice. An overlay left out for one
    /// pool should be left out for all, which is the caller's part.
    pub fn overlaid(&self, pool: &Requirements, overlays: &[Overlay]) -> Overlaid {
        let mut ordered: Vec<&Overlay> = overlays.iter().collect();
        ordered.sort_by_key(|overlay| overlay.rank());
        let mut changes: BTreeMap<usize, Change> = BTreeMap::new();
        let mut conflicts = Vec::new();
        for overlay in ordered {
            let touched = self.touched(pool, overlay);
            let meets = |(at, offers): &(usize, Vec<usize>)| Some((*at, changes.get(at)?.conflict(overlay, offers)?));
            if let Some((at, with)) = touched.iter().find_map(meets) {
                let instance_type = self.types()[at].name.clone();
                conflicts.push(OverlayConflict { overlay: overlay.name.clone(), with, instance_type });
                continue;
            }
            for (at, offers) in touched {
                changes.entry(at).or_default().add(overlay, &offers);
            }
        }
        let places: BTreeMap<Arc<str>, &Change> =
            changes.iter().map(|(at, change)| (self.types()[*at].name.clone(), change)).collect();
        let catalogue = self.altered(|t| places.get(&t.name).is_some_and(|change| change.apply(t)));
        Overlaid { catalogue, conflicts }
    }

    /// The types that an overlay is about, each with the places of the offerings that it is about.
    fn touched(&self, pool: &Requirements, overlay: &Overlay) -> Vec<(usize, Vec<usize>)> {
        let of_node = overlay.requirements.iter().filter(|wanted| !Offering::gives(wanted.key()));
        // what a pool asks of its types says nothing of any one of them
        let (from_type, from_pool): (Vec<&Requirement>, Vec<&Requirement>) =
            of_node.partition(|wanted| self.defines(wanted.key()));
        let mut wanted = Requirements::new();
        from_pool.into_iter().for_each(|requirement| wanted.add(requirement.clone()));
        if !pool.is_compatible(&wanted, Undefined::Denied) {
            return Vec::new();
        }
        let mut types = self.all();
        from_type.into_iter().for_each(|requirement| types.intersect_with(&self.matching(requirement)));
        let of_type = |at: usize| {
            let offers = self.types()[at].offerings.iter().enumerate();
            let offers = offers.filter(|(_, offering)| offering.satisfies(&overlay.requirements));
            (at, offers.map(|(place, _)| place).collect::<Vec<_>>())
        };
        types.ones().map(of_type).filter(|(_, offers)| !offers.is_empty()).collect()
    }
}

impl Change {
    /// The overlay of equal weight that already speaks of a price or a resource that `overlay` speaks of.
    fn conflict(&self, overlay: &Overlay, offers: &[usize]) -> Option<Arc<str>> {
        let equal = |last: &Last| (last.0 == overlay.weight).then(|| last.1.clone());
        let price = || offers.iter().filter_map(|at| self.prices.get(at)).find_map(|(_, last)| equal(last));
        let resource = || overlay.capacity.iter().filter_map(|(name, _)| self.resources.get(name)).find_map(equal);
        overlay.price.and_then(|_| price()).or_else(resource)
    }

    fn add(&mut self, overlay: &Overlay, offers: &[usize]) {
        let last = || (overlay.weight, overlay.name.clone());
        if let Some(change) = overlay.price {
            for at in offers {
                self.prices.entry(*at).or_insert_with(|| (change, last())).1 = last();
            }
        }
        for (name, amount) in overlay.capacity.iter() {
            if self.resources.insert(name.to_owned(), last()).is_none() {
                self.capacity.set(name.to_owned(), amount);
            }
        }
    }

    fn apply(&self, t: &mut Arc<InstanceType>) -> bool {
        if self.prices.is_empty() && self.capacity.is_empty() {
            return false;
        }
        let t = Arc::make_mut(t);
        for (at, (change, _)) in &self.prices {
            let offering = &mut t.offerings[*at];
            offering.price = change.of(offering.price);
            offering.source = PriceSource::Overlaid;
        }
        self.capacity.iter().for_each(|(name, amount)| t.capacity.set(name.to_owned(), amount));
        true
    }
}
