//! What a unit of each resource is worth: the dual of the fluid packing problem.

use smallvec::SmallVec;

/// What offers supply for their prices: a row of one cell for each resource, one after the other.
pub(super) struct Supplies {
    columns: usize,
    cells: Vec<f64>,
    prices: Vec<f64>,
}

impl Supplies {
    /// Makes room for offers of so many resources.
    pub(super) fn of(columns: usize) -> Self {
        Supplies { columns, cells: Vec::new(), prices: Vec::new() }
    }

    pub(super) fn add(&mut self, supply: impl IntoIterator<Item = f64>, price: f64) {
        self.cells.extend(supply);
        self.prices.push(price);
        debug_assert_eq!(self.cells.len(), self.prices.len() * self.columns);
    }

    /// Answers the least price; infinity where there is none.
    pub(super) fn cheapest(&self) -> f64 {
        self.prices.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Prices resources so that no offer is worth more than it costs and the demand is worth as much as possible: maximises `demand·w`
/// subject to `supply·w <= price` for each offer, `w >= 0`. Its value is the fluid lower bound on what the demand costs.
///
/// A tableau simplex with Bland's rule: few columns (resources), many rows (offers); the origin is feasible as prices are not negative.
pub(super) fn worth(demand: &[f64], supplies: &Supplies) -> Vec<f64> {
    let columns = demand.len();
    let mut cells = supplies.cells.clone();
    let mut bounds = supplies.prices.clone();
    let mut gain = demand.to_vec();
    // the variable of each row and column: resources come first, then slacks
    let mut basic: Vec<usize> = (columns..columns + bounds.len()).collect();
    let mut free: Vec<usize> = (0..columns).collect();
    for _ in 0..MAX_PIVOTS {
        let entering = (0..columns).filter(|c| gain[*c] > EPSILON).min_by_key(|c| free[*c]);
        let Some(column) = entering else { break };
        let ratio = |row: usize| bounds[row] / cells[row * columns + column];
        let leaving = (0..bounds.len())
            .filter(|row| cells[*row * columns + column] > EPSILON)
            .min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(basic[*a].cmp(&basic[*b])));
        let Some(row) = leaving else { break };
        pivot(&mut cells, &mut bounds, &mut gain, row, column);
        std::mem::swap(&mut basic[row], &mut free[column]);
    }
    let mut worth = vec![0.0; columns];
    for (row, variable) in basic.iter().enumerate().filter(|(_, variable)| **variable < columns) {
        worth[*variable] = bounds[row].max(0.0);
    }
    worth
}

const EPSILON: f64 = 1e-12;
/// Far more than a handful of columns ever need; a bound against cycling by rounding.
const MAX_PIVOTS: usize = 500;

fn pivot(cells: &mut [f64], bounds: &mut [f64], gain: &mut [f64], row: usize, column: usize) {
    let columns = gain.len();
    let mut source: SmallVec<[f64; 8]> = SmallVec::from_slice(&cells[row * columns..][..columns]);
    let scale = source[column];
    source.iter_mut().for_each(|cell| *cell /= scale);
    source[column] = 1.0 / scale;
    bounds[row] /= scale;
    let bound = bounds[row];
    let without = |other: &mut [f64]| {
        let factor = other[column];
        for (c, cell) in other.iter_mut().enumerate() {
            *cell = if c == column { -factor * source[c] } else { *cell - factor * source[c] };
        }
        factor
    };
    for (at, other) in cells.chunks_exact_mut(columns).enumerate() {
        if at == row {
            other.copy_from_slice(&source);
        } else if other[column] != 0.0 {
            bounds[at] -= without(other) * bound;
        }
    }
    without(gain);
}

#[cfg(test)]
mod tests {
    use super::{Supplies, worth};

    fn priced(demand: &[f64], offers: &[(&[f64], f64)]) -> Vec<f64> {
        let mut supplies = Supplies::of(demand.len());
        offers.iter().for_each(|(supply, price)| supplies.add(supply.iter().copied(), *price));
        worth(demand, &supplies)
    }

    #[test]
    fn one_offer_prices_the_scarce_resource() {
        // 10 cpu and 10 GiB wanted; a node has 2 cpu and 8 GiB for 1: cpu decides
        let w = priced(&[10.0, 10.0], &[(&[2.0, 8.0], 1.0)]);
        assert!((w[0] - 0.5).abs() < 1e-9 && w[1].abs() < 1e-9, "{w:?}");
    }

    #[test]
    fn a_mix_of_two_offers_prices_both() {
        // compute node 4 cpu 8 GiB for 4, memory node 4 cpu 32 GiB for 6; demand between them
        let w = priced(&[8.0, 40.0], &[(&[4.0, 8.0], 4.0), (&[4.0, 32.0], 6.0)]);
        let value = 8.0 * w[0] + 40.0 * w[1];
        assert!((value - 10.0).abs() < 1e-9, "{w:?}");
        assert!(w[0] * 4.0 + w[1] * 8.0 <= 4.0 + 1e-9 && w[0] * 4.0 + w[1] * 32.0 <= 6.0 + 1e-9);
    }
}
