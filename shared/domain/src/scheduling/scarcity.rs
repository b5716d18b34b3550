//! What nodes cost where limits bind: a pool near its limits is better off with types that take less of them, though they may be dearer.

use super::packing::{dollars, limits_left, node_size};
use super::problem::Problem;
use crate::catalogue::Price;

/// Dollars an hour that a node is reckoned dearer than its price, by pool and type; nothing where prices alone count.
#[derive(Default)]
pub(crate) struct Scarcity(Vec<Vec<f64>>);

impl Scarcity {
    /// Spreads `worth` over what the limits of each pool leave; a type costs as much of it as it takes of the limit that it takes most of.
    pub(crate) fn of(problem: &Problem<'_>, worth: Price) -> Self {
        let by_pool = problem.pools.iter().map(|state| {
            let left = limits_left(state);
            let most = |at: usize| {
                let size = node_size(state, at);
                let shares = size.iter().filter(|(_, amount)| amount.is_positive());
                let share = |amount: i128, left: i128| if left > 0 { amount as f64 / left as f64 } else { 1.0 };
                shares.map(|(name, amount)| share(amount.nanos(), left.get(name).nanos())).fold(0.0, f64::max)
            };
            let types = 0..state.catalogue.types().len();
            match state.pool.limits.is_empty() {
                true => Vec::new(),
                false => types.map(|at| dollars(worth) * most(at)).collect(),
            }
        });
        Scarcity(by_pool.collect())
    }

    /// What a node of a type costs, in dollars an hour.
    pub(super) fn cost(&self, pool: usize, at: usize, price: Price) -> f64 {
        let extra = self.0.get(pool).and_then(|types| types.get(at));
        dollars(price) + extra.copied().unwrap_or_default()
    }
}
