//! How many random cases a property runs: a fixed number from a fixed seed, fifty times as many with `KARP_DEEP=1`. `PROPTEST_CASES` says
//! another number; in a deep run it adds cases, and never takes any.

#![allow(dead_code, reason = "each test uses its own part")]

use proptest::test_runner::{Config, RngSeed};

/// How many times more cases a deep run has.
const DEEP: u32 = 50;

/// Returns a configuration of so many cases. The seed is fixed, so that a failure repeats everywhere; a deep run takes another seed, which
/// `KARP_SEED` may set.
pub fn cases(count: u32) -> Config {
    let deep = std::env::var("KARP_DEEP").is_ok_and(|value| value == "1");
    let seed = std::env::var("KARP_SEED").ok().and_then(|seed| seed.parse().ok());
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config {
        cases: match deep {
            true => asked.unwrap_or(0).max(count * DEEP),
            false => asked.unwrap_or(count),
        },
        rng_seed: RngSeed::Fixed(seed.unwrap_or(if deep { 50 } else { 1 })),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        // of every case that counts, some thrown away
        max_global_rejects: 1 << 20,
        ..Config::default()
    }
}
