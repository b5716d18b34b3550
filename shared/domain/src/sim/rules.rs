//! Rules that users change while karp goes by them: how many nodes of a pool may go at a time.

use std::sync::Arc;

use super::World;
use crate::cluster::Share;

/// The most nodes that a user lets go at a time.
const MOST: usize = 3;

impl World {
    /// A user lets more or fewer nodes of a pool go at a time, or none, whatever goes already; or does not.
    pub(super) fn change_budgets(&mut self) {
        if !self.random.happens(self.faults.budgets_permille) {
            return;
        }
        let (at, most) = (self.random.below(self.pools.len()), self.random.below(MOST + 1));
        let Some(pool) = self.pools.get_mut(at) else { return };
        for budget in Arc::make_mut(pool).budgets.iter_mut().filter(|budget| budget.window.is_none()) {
            budget.nodes = Share::Count(most as u32);
        }
        self.rebudgeted += 1;
    }
}
