//! Which of one side is which of the other, where several may be.

/// Says whether `count` on one side can each have one of as many on the other side for itself, where `fits(one, other)`.
pub(super) fn all_find_one(count: usize, fits: impl Fn(usize, usize) -> bool) -> bool {
    let mut taken = vec![None; count];
    (0..count).all(|one| finds_one(one, &fits, &mut vec![false; count], &mut taken))
}

/// Gives one side's `one` a place, for which those that have one may have to take another.
fn finds_one(
    one: usize,
    fits: &impl Fn(usize, usize) -> bool,
    asked: &mut [bool],
    taken: &mut [Option<usize>],
) -> bool {
    let count = taken.len();
    // mostly nothing has changed, and each is what stands at its own place
    for other in (0..count).map(|step| (one + step) % count) {
        if asked[other] || !fits(one, other) {
            continue;
        }
        asked[other] = true;
        if taken[other].is_none_or(|holder| finds_one(holder, fits, asked, taken)) {
            taken[other] = Some(one);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 4;

    /// Tries whatever there is.
    fn possible(one: usize, free: u8, fits: &impl Fn(usize, usize) -> bool) -> bool {
        one == COUNT
            || (0..COUNT).any(|other| {
                free & (1 << other) != 0 && fits(one, other) && possible(one + 1, free & !(1 << other), fits)
            })
    }

    #[test]
    fn all_find_one_where_any_order_of_trying_does() {
        let mut found = 0;
        for table in 0..1_u32 << (COUNT * COUNT) {
            let fits = |one: usize, other: usize| table & (1 << (one * COUNT + other)) != 0;
            let expected = possible(0, (1 << COUNT) - 1, &fits);
            assert_eq!(all_find_one(COUNT, fits), expected, "{table:016b}");
            found += usize::from(expected);
        }
        assert!(found > 10_000, "{found}");
        assert!(all_find_one(0, |_, _| false));
    }
}
