//! Times by the own clock. AWS says by its clock since when something is so, and the two may be minutes apart: what is to last for two minutes
//! would be over at once, or far too late.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Check, Health, Message, Notice, WARNING};

/// Remembers since when checks of instances fail.
#[derive(Clone, Debug, Default)]
pub struct Onsets {
    /// When it was looked last.
    looked: Option<Timestamp>,
    failing: BTreeMap<(Arc<str>, Check), Onset>,
}

#[derive(Clone, Copy, Debug)]
struct Onset {
    /// As EC2 tells it.
    told: Timestamp,
    own: Timestamp,
}

impl Onsets {
    /// Notes that a look came to nothing: what fails next may have failed for longer than since the look before.
    pub fn miss(&mut self) {
        self.looked = None;
    }

    /// Notes all instances that EC2 found ill when it was asked at `now`, and puts the own times in the place of EC2's. What EC2 says is believed where
    /// it lies between the last look, at which the check did not fail, and this one; else it fails since now. So it is at the first look: with each
    /// process, patience begins anew.
    pub fn note<'h>(&mut self, ill: impl IntoIterator<Item = &'h mut Health>, now: Timestamp) {
        let before = std::mem::take(&mut self.failing);
        for Health { instance_id, failed, .. } in ill {
            for (check, since) in failed {
                let key = (instance_id.clone(), *check);
                let onset = match before.get(&key) {
                    // one that is told to be later is another: it had recovered
                    Some(known) if *since <= known.told => Onset { own: known.own.min(now), ..*known },
                    _ => {
                        let is_new = self.looked.is_some_and(|looked| looked <= *since) && *since <= now;
                        Onset { told: *since, own: if is_new { *since } else { now } }
                    }
                };
                *since = onset.own;
                self.failing.insert(key, onset);
            }
        }
        self.looked = Some(now);
    }
}

/// Remembers since when messages have been left in the queue.
#[derive(Clone, Debug, Default)]
pub struct Returning(BTreeMap<String, Timestamp>);

impl Returning {
    /// Answers whether a message stays in the queue, to come again, as [`Message::is_kept`] says: judged by when it first came here, not by the time
    /// that it tells. `id` is the queue's.
    pub fn keeps(&mut self, id: &str, message: &Message, notice: &Notice, launching: bool, now: Timestamp) -> bool {
        // a message that comes after so long was to be deleted before, and nobody waits for it
        self.0.retain(|_, first| now.duration_since(*first) < WARNING * 2);
        let kept = |first| message.is_kept(&Notice { at: Some(first), ..notice.clone() }, launching, now);
        kept(now) && kept(*self.0.entry(id.to_owned()).or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::super::{Verdict, parse};
    use super::*;
    use crate::lifecycle::Ward;

    /// Seconds between looks.
    const POLL: i64 = 60;
    /// Clocks that go wrong by so many seconds, and a right one.
    const CLOCKS: [i64; 5] = [-600, -20, 0, 20, 600];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn ill(since: i64) -> Health {
        Health { instance_id: "i-1".into(), failed: vec![(Check::System, at(since))], events: Vec::new() }
    }

    /// Looks each minute from second 0 on, by a clock that is wrong by so many seconds, at an instance that fails as `told` says for each look;
    /// returns at which second it is ended.
    fn ends(wrong: i64, told: impl Fn(i64) -> Option<i64>) -> Option<i64> {
        let mut onsets = Onsets::default();
        (0..20).map(|look| look * POLL).find(|second| {
            let (mut found, now) = (told(*second).map(ill), at(second + wrong));
            onsets.note(&mut found, now);
            let verdict = found.as_ref().map(|health| health.verdict(Ward { nodes: 10, ill: 1 }, now));
            matches!(verdict, Some(Verdict::Ends(_)))
        })
    }

    #[test]
    fn a_check_fails_for_two_minutes_whatever_the_clock_says() {
        for wrong in CLOCKS {
            // seen at 360
            assert_eq!(ends(wrong, |second| (second >= 310).then_some(310)), Some(480), "{wrong}");
        }
        assert_eq!(ends(0, |second| (second >= 360).then_some(301)), Some(480), "EC2 is believed: 421 is past");
        assert_eq!(ends(0, |second| (second >= 420).then_some(301)), Some(540), "EC2 told it late");
    }

    #[test]
    fn what_is_told_after_a_look_that_came_to_nothing_fails_since_then() {
        let mut onsets = Onsets::default();
        onsets.note(&mut [], at(0));
        onsets.miss();
        let mut found = [ill(30)];
        onsets.note(&mut found, at(600));
        assert_eq!(found[0].failed, [(Check::System, at(600))]);
    }

    #[test]
    fn what_failed_before_the_first_look_fails_since_then() {
        for wrong in CLOCKS {
            assert_eq!(ends(wrong, |_| Some(-3600)), Some(120), "{wrong}");
        }
    }

    #[test]
    fn what_recovers_begins_anew_and_what_was_earlier_than_told_does_not() {
        for wrong in CLOCKS {
            // well again at 120
            let recovers =
                |second: i64| [Some(0), Some(0), None, Some(170)][usize::try_from(second / 60).unwrap().min(3)];
            assert_eq!(ends(wrong, recovers), Some(300), "{wrong}");
            // well again and ill again between two looks
            let relapses = |second: i64| Some(if second < 120 { 0 } else { 110 });
            assert_eq!(ends(wrong, relapses), Some(240), "{wrong}");
            assert_eq!(ends(wrong, |second| Some(if second < 60 { -10 } else { -3600 })), Some(120), "{wrong}");
        }
    }

    #[test]
    fn a_clock_that_is_put_back_does_not_put_an_end_off() {
        let mut onsets = Onsets::default();
        onsets.note(&mut [ill(0)], at(1000));
        let mut found = [ill(0)];
        onsets.note(&mut found, at(0));
        assert_eq!(found[0].failed, [(Check::System, at(0))]);
    }

    fn warning(at: Option<Timestamp>) -> (Message, Notice) {
        let notice = Notice { instance_id: "i-1".into(), at };
        (Message::SpotInterruption(notice.clone()), notice)
    }

    #[test]
    fn a_warning_of_nobody_waits_for_two_minutes_whatever_the_clock_says() {
        for wrong in CLOCKS {
            for told in [Some(at(0)), None] {
                let mut returning = Returning::default();
                let (message, notice) = warning(told);
                // it comes again every 20 seconds
                let mut comes = |second| returning.keeps("a", &message, &notice, true, at(wrong + second));
                let kept: Vec<i64> = (0..10).map(|time| 1 + 20 * time).take_while(|second| comes(*second)).collect();
                assert_eq!(kept.last(), Some(&101), "{wrong} {told:?}");
                assert!(!comes(141), "it was to be deleted: {wrong}");
            }
        }
    }

    #[test]
    fn what_waits_for_nobody_is_not_kept_and_not_remembered() {
        let mut returning = Returning::default();
        let (message, notice) = warning(Some(at(0)));
        assert!(!returning.keeps("a", &message, &notice, false, at(0)), "every instance of ours is known");
        assert!(!returning.keeps("b", &parse("no event"), &notice, true, at(0)));
        assert!(returning.0.is_empty());
        assert!(returning.keeps("c", &message, &notice, true, at(0)));
        let later = at(0) + WARNING * 2 + SignedDuration::from_secs(1);
        assert!(returning.keeps("d", &message, &notice, true, later));
        assert_eq!(returning.0.into_keys().collect::<Vec<_>>(), ["d"], "of long ago");
    }
}
