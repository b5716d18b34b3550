//! Recalls: an instance that goes, or should. Its claim carries since when and why, so that whoever looks after the claim next goes on.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::api::labels;

/// Of the two minutes that EC2 gives, one is for the replacement and one for the drain.
const URGENT: SignedDuration = SignedDuration::from_secs(60);
/// What is announced hours ahead, or only recommended, leaves time for a second launch where the first comes to nothing.
const CALM: SignedDuration = SignedDuration::from_mins(10);

/// Says why an instance is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// EC2 takes a spot instance back.
    SpotInterrupted,
    /// EC2 takes an instance of a capacity reservation back.
    CapacityReservationInterrupted,
    /// AWS will restart, stop or retire the instance.
    ScheduledChange,
    /// EC2 recommends to leave, and the pool follows.
    RebalanceRecommendation,
}

impl Cause {
    const ALL: [Self; 4] = [
        Self::SpotInterrupted,
        Self::CapacityReservationInterrupted,
        Self::ScheduledChange,
        Self::RebalanceRecommendation,
    ];

    /// Answers its word in metrics and on claims.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpotInterrupted => "spot_interrupted",
            Self::CapacityReservationInterrupted => "capacity_reservation_interrupted",
            Self::ScheduledChange => "scheduled_change",
            Self::RebalanceRecommendation => "rebalance_recommendation",
        }
    }

    /// Answers how long a replacement is waited for.
    const fn patience(self) -> SignedDuration {
        match self {
            Self::SpotInterrupted | Self::CapacityReservationInterrupted => URGENT,
            Self::ScheduledChange | Self::RebalanceRecommendation => CALM,
        }
    }

    /// Answers whether the instance may as well stay when nothing can replace it.
    pub const fn is_advice(self) -> bool {
        matches!(self, Self::RebalanceRecommendation)
    }

    /// Answers whether what replaces the node should not be the same offering again.
    pub const fn speaks_against_offering(self) -> bool {
        matches!(self, Self::SpotInterrupted | Self::RebalanceRecommendation)
    }
}

/// Says since when and why an instance is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Why.
    pub cause: Cause,
    /// When it was announced.
    pub at: Timestamp,
}

/// Holds what is seen of the node of a claim whose instance is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacating {
    /// It takes no new pods.
    pub tainted: bool,
    /// A plan was made without it, and every node that it makes for the pods here is ready.
    pub rehoused: bool,
}

/// Says what to do next with a claim whose instance is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Taint its node, so that the next plan is made without it.
    Taint,
    /// Look again soon.
    Wait,
    /// Delete the claim: its node is drained.
    Delete,
    /// Take the recall back: nothing could replace the node in time, and it may run on.
    Stay,
}

impl Recall {
    /// Makes the recall that a message announces, received at `now`. A time that lies ahead is not believed: the own clock is slow then, and to
    /// wait by it would be to wait beyond the instance's end. One that lies behind is believed, though the own clock may be fast: how long a
    /// message was on its way nobody tells, and a drain that begins too early loses less than one that begins too late.
    pub fn announced(cause: Cause, at: Option<Timestamp>, now: Timestamp) -> Self {
        Self { cause, at: at.map_or(now, |at| at.min(now)) }
    }

    /// Answers what to do with the claim, by its node; none where it has no node to replace.
    pub fn next(self, node: Option<Vacating>, now: Timestamp) -> Next {
        let late = now >= self.due();
        match node {
            None => Next::Delete,
            Some(node) if late && !node.rehoused && self.cause.is_advice() => Next::Stay,
            Some(node) if !node.tainted => Next::Taint,
            Some(node) if late || node.rehoused => Next::Delete,
            Some(_) => Next::Wait,
        }
    }

    /// Reads what the annotations of a claim say. What cannot be read of it is taken for the most urgent: the instance may be gone soon.
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Option<Self> {
        let annotations = annotations?;
        let at = annotations.get(labels::INTERRUPTED_AT)?.parse().unwrap_or(Timestamp::MIN);
        let by = annotations.get(labels::INTERRUPTED_BY).map(String::as_str);
        let cause = Cause::ALL.into_iter().find(|cause| Some(cause.as_str()) == by);
        Some(Self { cause: cause.unwrap_or(Cause::SpotInterrupted), at })
    }

    /// Gives the annotations that say it.
    pub fn annotations(self) -> [(&'static str, String); 2] {
        [(labels::INTERRUPTED_AT, format!("{:.0}", self.at)), (labels::INTERRUPTED_BY, self.cause.as_str().to_owned())]
    }

    /// Answers when the replacement has been waited for long enough.
    pub fn due(self) -> Timestamp {
        self.at.saturating_add(self.cause.patience()).unwrap_or(Timestamp::MAX)
    }

    /// Answers whether it takes a claim's node away sooner than what its annotations say already, or surely where that may be taken back. The
    /// same message again does not.
    pub fn hastens(self, annotations: Option<&BTreeMap<String, String>>) -> bool {
        let Some(known) = Self::of(annotations) else { return true };
        let sooner = self.due().as_second() < known.due().as_second();
        sooner || known.cause.is_advice() && !self.cause.is_advice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn written(recall: Recall) -> BTreeMap<String, String> {
        recall.annotations().map(|(key, value)| (key.to_owned(), value)).into()
    }

    #[test]
    fn a_slow_clock_waits_no_longer() {
        let due = |announced, now| {
            let recall = Recall::announced(Cause::SpotInterrupted, announced, at(now));
            recall.due().duration_since(at(now))
        };
        assert_eq!(due(Some(at(0)), 0), due(None, 0));
        assert_eq!(due(Some(at(300)), 0), due(None, 0), "five minutes behind");
        assert_eq!(due(Some(at(0)), 30), due(None, 0) - SignedDuration::from_secs(30));
    }

    #[test]
    fn a_node_goes_when_its_pods_have_a_home_or_time_is_up() {
        let recall = |cause| Recall { cause, at: at(0) };
        let node = |tainted, rehoused| Some(Vacating { tainted, rehoused });
        for cause in Cause::ALL {
            let (early, late) = (at(1), recall(cause).due());
            assert_eq!(recall(cause).next(None, early), Next::Delete);
            assert_eq!(recall(cause).next(node(false, false), early), Next::Taint);
            assert_eq!(recall(cause).next(node(true, false), early), Next::Wait);
            assert_eq!(recall(cause).next(node(true, true), early), Next::Delete);
            let at_last = if cause.is_advice() { Next::Stay } else { Next::Delete };
            assert_eq!(recall(cause).next(node(true, false), late), at_last);
            assert_eq!(
                recall(cause).next(node(false, true), late),
                Next::Taint,
                "what is kept off first counts as left"
            );
            assert_eq!(recall(cause).next(node(true, true), late), Next::Delete);
        }
    }

    #[test]
    fn what_is_written_on_a_claim_is_read_again() {
        for cause in Cause::ALL {
            let recall = Recall { cause, at: at(0) };
            assert_eq!(Recall::of(Some(&written(recall))), Some(recall));
        }
        assert_eq!(Recall::of(None), None);
        assert_eq!(Recall::of(Some(&BTreeMap::new())), None);
    }

    #[test]
    fn what_cannot_be_read_is_urgent() {
        let odd = |at: &str| Some(BTreeMap::from([(labels::INTERRUPTED_AT.to_owned(), at.to_owned())]));
        let older = Recall::of(odd("2026-11-21T10:00:00Z").as_ref()).unwrap();
        assert_eq!(older.cause, Cause::SpotInterrupted, "claims of a version that wrote no cause");
        let unread = Recall::of(odd("yesterday").as_ref()).unwrap();
        assert!(unread.due() < at(0));
    }

    #[test]
    fn a_recall_is_hastened_and_never_put_off() {
        let of = |cause, second| Recall { cause, at: at(second) };
        let advice = of(Cause::RebalanceRecommendation, 0);
        let spot = of(Cause::SpotInterrupted, 100);
        assert!(advice.hastens(None) && advice.hastens(Some(&BTreeMap::new())));
        assert!(!advice.hastens(Some(&written(advice))), "a duplicate");
        assert!(spot.hastens(Some(&written(advice))), "EC2 means it now");
        assert!(!advice.hastens(Some(&written(spot))), "the advice comes late");
        assert!(!of(Cause::SpotInterrupted, 130).hastens(Some(&written(spot))), "two minutes are not begun anew");
        assert!(!of(Cause::ScheduledChange, 130).hastens(Some(&written(spot))));
        assert_eq!(spot.due(), at(160));
        let soon_taken_back = Recall { at: at(-550), ..advice };
        assert!(spot.due() > soon_taken_back.due());
        assert!(
            spot.hastens(Some(&written(soon_taken_back))),
            "else nobody would know of it once the advice is taken back"
        );
    }

    #[test]
    fn only_advice_may_be_left_undone() {
        let advice: Vec<_> = Cause::ALL.into_iter().filter(|cause| cause.is_advice()).collect();
        assert_eq!(advice, [Cause::RebalanceRecommendation]);
    }
}
