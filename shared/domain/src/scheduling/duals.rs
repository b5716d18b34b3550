//! What a unit of each resource is worth: the dual of the fluid packing problem.

/// Prices resources so that no offer is worth more than it costs and the demand is worth as much as possible: maximises `demand·w`
/// subject to `supply·w <= price` for each offer, `w >= 0`. Its value is the fluid lower bound on what the demand costs.
///
/// A tableau simplex with Bland's rule: few columns (resources), many rows (offers); the origin is feasible as prices are not negative.
pub(super) fn worth(demand: &[f64], offers: &[(Vec<f64>, f64)]) -> Vec<f64> {
    let columns = demand.len();
    let mut rows: Vec<Vec<f64>> = offers.iter().map(|(supply, _)| supply.clone()).collect();
    let mut bounds: Vec<f64> = offers.iter().map(|(_, price)| *price).collect();
    let mut gain = demand.to_vec();
    // the variable of each row and column: resources come first, then slacks
    let mut basic: Vec<usize> = (columns..columns + rows.len()).collect();
    let mut free: Vec<usize> = (0..columns).collect();
    for _ in 0..MAX_PIVOTS {
        let entering = (0..columns).filter(|c| gain[*c] > EPSILON).min_by_key(|c| free[*c]);
        let Some(column) = entering else { break };
        let ratio = |row: usize| bounds[row] / rows[row][column];
        let leaving = (0..rows.len())
            .filter(|row| rows[*row][column] > EPSILON)
            .min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(basic[*a].cmp(&basic[*b])));
        let Some(row) = leaving else { break };
        pivot(&mut rows, &mut bounds, &mut gain, row, column);
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

fn pivot(rows: &mut [Vec<f64>], bounds: &mut [f64], gain: &mut [f64], row: usize, column: usize) {
    let scale = rows[row][column];
    rows[row].iter_mut().for_each(|cell| *cell /= scale);
    rows[row][column] = 1.0 / scale;
    bounds[row] /= scale;
    let (source, bound) = (rows[row].clone(), bounds[row]);
    for (at, other) in rows.iter_mut().enumerate().filter(|(at, _)| *at != row) {
        let factor = other[column];
        if factor != 0.0 {
            for (c, cell) in other.iter_mut().enumerate() {
                *cell = if c == column { -factor * source[c] } else { *cell - factor * source[c] };
            }
            bounds[at] -= factor * bound;
        }
    }
    let factor = gain[column];
    for (c, cell) in gain.iter_mut().enumerate() {
        *cell = if c == column { -factor * source[c] } else { *cell - factor * source[c] };
    }
}

#[cfg(test)]
mod tests {
    use super::worth;

    #[test]
    fn one_offer_prices_the_scarce_resource() {
        // 10 cpu and 10 GiB wanted; a node has 2 cpu and 8 GiB for 1: cpu decides
        let w = worth(&[10.0, 10.0], &[(vec![2.0, 8.0], 1.0)]);
        assert!((w[0] - 0.5).abs() < 1e-9 && w[1].abs() < 1e-9, "{w:?}");
    }

    #[test]
    fn a_mix_of_two_offers_prices_both() {
        // compute node 4 cpu 8 GiB for 4, memory node 4 cpu 32 GiB for 6; demand between them
        let w = worth(&[8.0, 40.0], &[(vec![4.0, 8.0], 4.0), (vec![4.0, 32.0], 6.0)]);
        let value = 8.0 * w[0] + 40.0 * w[1];
        assert!((value - 10.0).abs() < 1e-9, "{w:?}");
        assert!(w[0] * 4.0 + w[1] * 8.0 <= 4.0 + 1e-9 && w[0] * 4.0 + w[1] * 32.0 <= 6.0 + 1e-9);
    }
}
