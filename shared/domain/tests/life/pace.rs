//! Token buckets: never more calls than the rate allows in any window, and none kept waiting without need.

use std::time::Duration;

use karp_domain::pace::{Bucket, Rate};
use proptest::prelude::*;

const RATES: [Rate; 5] =
    [Rate::CREATE_FLEET, Rate::TERMINATE_INSTANCES, Rate::RUN_INSTANCES, Rate::CREATE_TAGS, Rate::DESCRIBE];

#[test]
fn the_rates_are_those_that_ec2_publishes() {
    for (rate, per_second, burst) in [
        (Rate::CREATE_FLEET, 5, 50),
        (Rate::MUTATE, 5, 50),
        (Rate::TERMINATE_INSTANCES, 5, 100),
        (Rate::RUN_INSTANCES, 2, 5),
        (Rate::CREATE_TAGS, 10, 100),
        (Rate::DESCRIBE, 20, 100),
    ] {
        assert_eq!((rate.every * per_second, rate.burst), (Duration::from_secs(1), burst), "{rate:?}");
        let mut bucket = Bucket::new(rate);
        assert!((0..burst).all(|_| bucket.take(ms(0))) && !bucket.take(ms(0)), "so many at once: {rate:?}");
        let waits: Vec<Duration> = (0..per_second).map(|_| bucket.reserve(ms(0))).collect();
        assert_eq!(waits.last(), Some(&ms(1000)), "then so many a second: {rate:?}");
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn the_burst_is_free_and_the_rest_keeps_the_rate() {
    let mut bucket = Bucket::new(Rate::CREATE_FLEET);
    let now = ms(7_000);
    assert!((0..50).all(|_| bucket.reserve(now).is_zero()));
    let waits: Vec<Duration> = (0..10).map(|_| bucket.reserve(now)).collect();
    assert_eq!((waits[0], waits[9]), (ms(200), ms(2000)));
    assert!(bucket.reserve(now + ms(3000)).is_zero(), "3 s refill 15 tokens, 10 were owed");
}

#[test]
fn an_idle_bucket_never_holds_more_than_its_burst() {
    let mut bucket = Bucket::new(Rate::RUN_INSTANCES);
    assert!(bucket.reserve(ms(0)).is_zero());
    let later = ms(3_600_000);
    assert!((0..5).all(|_| bucket.reserve(later).is_zero()));
    assert_eq!(bucket.reserve(later), ms(500));
}

#[test]
fn what_another_took_is_not_there() {
    let mut bucket = Bucket::new(Rate::CREATE_FLEET);
    bucket.empty(ms(0));
    assert!(!bucket.take(ms(199)) && bucket.take(ms(200)) && !bucket.take(ms(399)));
    assert!(bucket.take(ms(400)), "a call that was refused took nothing");
}

/// Moments at which somebody calls, in order.
fn moments() -> impl Strategy<Value = Vec<Duration>> {
    let pauses = prop_oneof![8 => Just(0_u64), 3 => 0..50_u64, 1 => 0..40_000_u64];
    prop::collection::vec(pauses, 1..400).prop_map(|pauses| {
        let add = |at: &mut u64, pause| {
            *at += pause;
            Some(ms(*at))
        };
        pauses.into_iter().scan(0, add).collect()
    })
}

fn all_windows_are_within(rate: Rate, sent: &[Duration]) {
    for (first, from) in sent.iter().enumerate() {
        for (more, to) in sent[first..].iter().enumerate() {
            assert!(rate.allows(more as u32 + 1, *to - *from), "{} calls from {from:?} to {to:?}", more + 1);
        }
    }
}

proptest! {
    #[test]
    fn no_window_has_more_calls_than_its_rate_allows(moments in moments(), rate in prop::sample::select(&RATES[..])) {
        let mut bucket = Bucket::new(rate);
        let sent: Vec<Duration> = moments.iter().map(|now| *now + bucket.reserve(*now)).collect();
        prop_assert!(sent.is_sorted(), "whoever came first goes first");
        all_windows_are_within(rate, &sent);
        // no call of those that waited could have been sent a moment before
        for (at, (now, own)) in moments.iter().zip(&sent).enumerate().filter(|(_, (now, own))| now < own) {
            let earlier = *own - Duration::from_nanos(1);
            let full = (0..at).any(|first| !rate.allows((at - first) as u32 + 1, earlier.saturating_sub(sent[first])));
            prop_assert!(full, "the call of {now:?} waits until {own:?} without need");
        }
    }

    #[test]
    fn what_is_taken_only_when_it_is_there_is_within_the_rate_too(
        moments in moments(), rate in prop::sample::select(&RATES[..])
    ) {
        let mut bucket = Bucket::new(rate);
        let sent: Vec<Duration> = moments.into_iter().filter(|now| bucket.take(*now)).collect();
        all_windows_are_within(rate, &sent);
    }
}
