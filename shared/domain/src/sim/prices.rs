//! Prices that move, as they do on the spot market.

use std::sync::Arc;

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
