//! What can be bought: by node class, and by pool where overlays change it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use super::{Pool, Unreadable, UnreadableField};
use crate::api::{self, NodeOverlay};
use crate::catalogue::{Catalogue, Instances, Overlay, OverlayConflict, ParsePriceChangeError, PriceChange};
use crate::requirement::{Requirement, Requirements};

/// Instance types by the name of the node class. A class that is missing is not ready.
#[derive(Clone, Debug, Default)]
pub struct Catalogues {
    of_class: BTreeMap<Arc<str>, Arc<Catalogue>>,
    /// By class and pool, where overlays say something.
    overlaid: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<Catalogue>>>,
}

impl Catalogues {
    /// Puts in what a class can buy.
    pub fn insert(&mut self, class: Arc<str>, catalogue: Arc<Catalogue>) {
        self.overlaid.remove(&class);
        self.of_class.insert(class, catalogue);
    }

    /// Answers what a class can buy, whatever overlays say; nothing when it is not ready.
    pub fn get(&self, class: &str) -> Option<&Arc<Catalogue>> {
        self.of_class.get(class)
    }

    /// Answers what a class can buy for a pool: at the prices, and with the capacities, that overlays give it there.
    pub fn of(&self, class: &str, pool: Option<&str>) -> Option<&Arc<Catalogue>> {
        let overlaid = pool.and_then(|pool| self.overlaid.get(class)?.get(pool));
        overlaid.or_else(|| self.get(class))
    }

    /// Goes through what classes can buy, by the name of the class, whatever overlays say.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Catalogue>> {
        self.of_class.values()
    }

    /// Applies overlays to what each pool can buy, instead of those applied before. Those that say something about the same as another one
    /// of equal weight, for whatever pool, are left out for all pools, and answered.
    pub fn overlay(&mut self, pools: &[Arc<Pool>], overlays: &[Overlay]) -> Vec<OverlayConflict> {
        let mut overlays = overlays.to_vec();
        let mut conflicts = Vec::new();
        loop {
            self.overlaid.clear();
            match self.apply(pools, &overlays) {
                None => return conflicts,
                // what was left out may have been in the way of others: they are looked at anew
                Some(conflict) => {
                    overlays.retain(|overlay| overlay.name != conflict.overlay);
                    conflicts.push(conflict);
                }
            }
        }
    }

    /// Applies overlays, and answers the first conflict in the order of the overlays.
    fn apply(&mut self, pools: &[Arc<Pool>], overlays: &[Overlay]) -> Option<OverlayConflict> {
        let keys: BTreeSet<&str> =
            overlays.iter().flat_map(|overlay| overlay.requirements.iter()).map(Requirement::key).collect();
        // pools that look alike to the overlays share one catalogue
        let mut made: Vec<(&str, Requirements, Arc<Catalogue>)> = Vec::new();
        let mut conflicts = Vec::new();
        for pool in pools.iter().filter(|pool| pool.is_ours() && !overlays.is_empty()) {
            let Some(catalogue) = self.of_class.get(&pool.class.name) else { continue };
            let seen: Requirements = keys.iter().filter_map(|key| pool.requirements.get(key)).cloned().collect();
            let same = made.iter().find(|(class, known, _)| **class == *pool.class.name && *known == seen);
            let catalogue = match same {
                Some((.., same)) => same.clone(),
                None => {
                    let overlaid = catalogue.overlaid(&seen, overlays);
                    conflicts.extend(overlaid.conflicts);
                    let catalogue = Arc::new(overlaid.catalogue);
                    made.push((&pool.class.name, seen, catalogue.clone()));
                    catalogue
                }
            };
            self.overlaid.entry(pool.class.name.clone()).or_default().insert(pool.name.clone(), catalogue);
        }
        let place = |conflict: &OverlayConflict| {
            overlays.iter().find(|overlay| overlay.name == conflict.overlay).map(Overlay::rank)
        };
        conflicts.into_iter().min_by(|one, other| place(one).cmp(&place(other)))
    }

    /// Takes instances of reservations away.
    pub fn take(&mut self, taken: &Instances) {
        if taken.is_empty() {
            return;
        }
        // catalogues that are shared stay so
        let mut left: Vec<(Arc<Catalogue>, Arc<Catalogue>)> = Vec::new();
        for catalogue in self.of_class.values_mut().chain(self.overlaid.values_mut().flat_map(BTreeMap::values_mut)) {
            *catalogue = match left.iter().find(|(before, _)| Arc::ptr_eq(before, catalogue)) {
                Some((_, after)) => after.clone(),
                None => {
                    let after = Arc::new(catalogue.with_taken(taken));
                    left.push((catalogue.clone(), after.clone()));
                    after
                }
            };
        }
    }
}

impl FromIterator<(Arc<str>, Arc<Catalogue>)> for Catalogues {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<Catalogue>)>>(all: I) -> Self {
        Catalogues { of_class: all.into_iter().collect(), overlaid: BTreeMap::new() }
    }
}

impl Index<&str> for Catalogues {
    type Output = Arc<Catalogue>;

    fn index(&self, class: &str) -> &Arc<Catalogue> {
        &self.of_class[class]
    }
}

impl Overlay {
    /// Reads a NodeOverlay.
    ///
    /// # Errors
    /// [`Unreadable`] with the field that cannot be understood.
    pub fn from_kube(overlay: &NodeOverlay) -> Result<Self, Unreadable> {
        let name = overlay.metadata.name.as_deref().unwrap_or_default();
        Self::read(name, overlay).map_err(|why| why.of("NodeOverlay", &name))
    }

    fn read(name: &str, overlay: &NodeOverlay) -> Result<Self, UnreadableField> {
        let wrong = |field: &str, problem: String| UnreadableField::new(format!("spec.{field}"), problem);
        let spec = &overlay.spec;
        let requirements =
            api::requirements(&spec.requirements).map_err(|error| wrong("requirements", error.to_string()))?;
        let change = |field: &str, text: &Option<String>| {
            let read = text.as_deref().map(str::parse::<PriceChange>).transpose();
            read.map_err(|error: ParsePriceChangeError| wrong(field, error.to_string()))
        };
        let (price, adjustment) = (change("price", &spec.price)?, change("priceAdjustment", &spec.price_adjustment)?);
        let price = match (price, adjustment) {
            (Some(_), Some(_)) => return Err(wrong("price", "stands beside priceAdjustment: set one of them".into())),
            (Some(PriceChange::By(_) | PriceChange::Share(_)), None) => {
                return Err(wrong("price", "is an adjustment: write it as priceAdjustment".into()));
            }
            (None, Some(PriceChange::To(_))) => {
                return Err(wrong("priceAdjustment", "has no sign: write +0.1, -0.1, +10% or -10%".into()));
            }
            (price, adjustment) => price.or(adjustment),
        };
        Ok(Overlay {
            name: name.into(),
            requirements,
            weight: spec.weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(0),
            price,
            capacity: spec.capacity.clone().unwrap_or_default(),
        })
    }
}
