//! Prices that move, as they do on the spot market, and what a controller knows of them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::World;
use crate::catalogue::{CapacityType, Catalogue, InstanceType};

/// A price is so many percent of what it was, at least and at most.
const LOWEST: usize = 50;
const HIGHEST: usize = 200;

impl World {
    /// Lets a second pass on the markets.
    pub(super) fn move_prices(&mut self) {
        if !self.random.happens(self.faults.prices_permille) {
            return;
        }
        let mut types: Vec<InstanceType> = self.catalogue.types().iter().map(|t| InstanceType::clone(t)).collect();
        let of = self.random.below(types.len());
        let spot = self.random.happens(500);
        let percent = LOWEST + self.random.below(HIGHEST - LOWEST + 1);
        let Some(moved) = types.get_mut(of) else { return };
        for offering in &mut moved.offerings {
            if (offering.capacity_type == CapacityType::Spot) == spot {
                offering.price = offering.price.scaled(percent as u64, 100);
            }
        }
        self.catalogue = Arc::new(Catalogue::new(types));
        self.repriced += 1;
    }
}

/// The prices that a controller knows: nobody tells of a change, so that it asks now and then.
pub(super) struct Prices {
    known: Arc<Catalogue>,
    asked: Timestamp,
}

impl Prices {
    /// Asks for them.
    pub(super) fn ask(world: &World) -> Self {
        Prices { known: world.catalogue.clone(), asked: world.now }
    }

    /// Asks again when that is due.
    pub(super) fn keep_up(&mut self, world: &World) {
        let age = SignedDuration::from_secs(i64::from(world.faults.prices_age_seconds));
        if world.now.duration_since(self.asked) >= age {
            *self = Prices::ask(world);
        }
    }

    /// What can be bought, at the prices that are known.
    pub(super) const fn known(&self) -> &Arc<Catalogue> {
        &self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Faults;

    #[test]
    fn prices_are_as_old_as_the_last_question() {
        let mut world = World::new(Timestamp::UNIX_EPOCH, Catalogue::default(), Vec::new(), Vec::new());
        world.faults = Faults { prices_age_seconds: 3, ..Faults::default() };
        let mut prices = Prices::ask(&world);
        let (before, after) = (world.catalogue.clone(), Arc::new(Catalogue::default()));
        world.catalogue = after.clone();
        let mut seen = Vec::new();
        for _ in 0..3 {
            world.now += SignedDuration::from_secs(1);
            prices.keep_up(&world);
            seen.push(Arc::ptr_eq(prices.known(), &after));
        }
        assert_eq!(seen, [false, false, true]);
        world.faults = Faults::default();
        world.catalogue = before.clone();
        prices.keep_up(&world);
        assert!(Arc::ptr_eq(prices.known(), &before), "they are asked for all the time");
    }
}
