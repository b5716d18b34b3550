//! Cron schedules and budget windows against the vectors that robfig's parser gives (`cargo sandbox oracle`).

use jiff::{SignedDuration, Timestamp};
use karp_domain::cluster::Window;
use karp_domain::cron::Cron;
use proptest::prelude::*;
use serde_json::Value;

fn seconds(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|second| second.as_i64().expect("seconds")).collect()
}

#[test]
fn schedules_hit_as_in_robfig() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../vectors/cron.json")).expect("vectors are JSON");
    let (header, vectors) = vectors.split_first().expect("the first vector names the times");
    let (times, durations) = (seconds(&header["times"]), seconds(&header["durations"]));
    assert!(vectors.len() >= 200, "{}", vectors.len());
    for vector in vectors {
        let schedule = vector["schedule"].as_str().expect("a schedule");
        let cron = schedule.parse::<Cron>();
        let Some(next) = vector.get("next").map(seconds) else {
            assert!(cron.is_err(), "{schedule:?} must be refused");
            continue;
        };
        let cron = cron.unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
        for (now, expected) in times.iter().zip(next) {
            let now = Timestamp::from_second(*now).expect("a time");
            let hit = cron.next(now).map_or(0, Timestamp::as_second);
            assert_eq!(hit, expected, "{schedule:?} after {now}");
        }
        for (duration, open) in durations.iter().zip(vector["open"].as_array().expect("a list")) {
            let window = Window { schedule: schedule.into(), duration: SignedDuration::from_secs(*duration) };
            let is_open = |now: &i64| window.is_open(Timestamp::from_second(*now).expect("a time")) == Ok(true);
            let answer: String = times.iter().map(|now| if is_open(now) { '1' } else { '0' }).collect();
            assert_eq!(answer, open.as_str().expect("bits"), "{schedule:?} for {duration} s");
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([-0-9*/,?@a-zA-Z]{0,9} ?){0,6}", now in -1_000_000_000_i64..5_000_000_000) {
        if let Ok(cron) = text.parse::<Cron>() {
            let now = Timestamp::from_second(now).expect("in range");
            prop_assert!(cron.next(now).is_none_or(|hit| hit > now));
        }
    }
}
