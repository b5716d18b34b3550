//! What EC2 finds out about an instance: checks that fail, and what it plans to do with it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::lifecycle::Ward;

/// A check that has failed for so long does not recover by itself (Karpenter: 2 min).
pub const IMPAIRED_FOR: SignedDuration = SignedDuration::from_secs(120);

/// The events after which an instance is not what it was. EC2 may add others, which are not for us to judge.
pub const EVENT_CODES: [&str; 5] =
    ["instance-reboot", "instance-retirement", "instance-stop", "system-maintenance", "system-reboot"];
/// EC2 goes on listing an event that is over, with one of these before its description.
const OVER: [&str; 2] = ["[Canceled]", "[Completed]"];

/// Names one of EC2's status checks. Those of attached volumes are left to whoever uses the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The instance answers.
    Instance,
    /// The hardware and network below it work.
    System,
}

impl Check {
    /// Answers its word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instance => "instance_status",
            Self::System => "system_status",
        }
    }
}

/// Holds what EC2 says of an instance that is not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `i-…`
    pub instance_id: Arc<str>,
    /// Checks that fail, each with the time since when: by EC2's clock, until [`Onsets`](super::Onsets) has noted it.
    pub failed: Vec<(Check, Timestamp)>,
    /// What is planned, and what was.
    pub events: Vec<ScheduledEvent>,
}

/// Holds what EC2 plans to do with an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledEvent {
    /// `instance-retirement`, ...
    pub code: String,
    /// In words.
    pub description: String,
    /// When at the earliest; none if EC2 does not say.
    pub not_before: Option<Timestamp>,
}

impl ScheduledEvent {
    /// Answers whether it is still to come, and of a kind that a node does not outlive.
    pub fn is_ahead(&self) -> bool {
        EVENT_CODES.contains(&self.code.as_str()) && OVER.iter().all(|over| !self.description.starts_with(over))
    }
}

/// Says which check fails since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// The check.
    pub check: Check,
    /// Since when it fails.
    pub since: Timestamp,
}

impl Impairment {
    /// Answers when it has been borne for long enough.
    pub fn due(self) -> Timestamp {
        self.since.saturating_add(IMPAIRED_FOR).unwrap_or(Timestamp::MAX)
    }
}

/// Says what becomes of an instance, by its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'h> {
    /// Nothing, at least for now.
    Stays,
    /// It would be ended, but so many of its pool are impaired that the fault is likely elsewhere.
    Spared(Impairment),
    /// It is ended, with hardly any time to drain: nobody knows whether its pods still run.
    Ends(Impairment),
    /// Its node is replaced before EC2 does what it plans.
    Leaves(&'h ScheduledEvent),
}

impl Health {
    /// Answers the failed check that was first to fail.
    pub fn impairment(&self) -> Option<Impairment> {
        let failed = self.failed.iter().map(|(check, since)| Impairment { check: *check, since: *since });
        failed.min_by_key(|failed| (failed.since, failed.check))
    }

    /// Answers what becomes of it. `ward` counts the nodes of its pool, and those of them that are impaired, for however short.
    pub fn verdict(&self, ward: Ward, now: Timestamp) -> Verdict<'_> {
        let due = self.impairment().filter(|impairment| impairment.due() <= now);
        let planned = self.events.iter().find(|event| event.is_ahead());
        match (due, planned) {
            (Some(impairment), _) if !ward.is_full() => Verdict::Ends(impairment),
            (_, Some(event)) => Verdict::Leaves(event),
            (Some(impairment), None) => Verdict::Spared(impairment),
            (None, None) => Verdict::Stays,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Ward = Ward { nodes: 10, ill: 1 };

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn health(failed: &[(Check, i64)], events: &[(&str, &str)]) -> Health {
        let event = |(code, description): &(&str, &str)| ScheduledEvent {
            code: (*code).to_owned(),
            description: (*description).to_owned(),
            not_before: None,
        };
        Health {
            instance_id: "i-1".into(),
            failed: failed.iter().map(|(check, since)| (*check, at(*since))).collect(),
            events: events.iter().map(event).collect(),
        }
    }

    #[test]
    fn a_check_may_fail_for_two_minutes() {
        let ill = health(&[(Check::System, 40), (Check::Instance, 10)], &[]);
        let first = Impairment { check: Check::Instance, since: at(10) };
        assert_eq!(ill.verdict(ALONE, at(129)), Verdict::Stays);
        assert_eq!(ill.verdict(ALONE, at(130)), Verdict::Ends(first));
    }

    #[test]
    fn where_many_are_impaired_none_is_ended() {
        let ill = health(&[(Check::System, 0)], &[]);
        let impaired = Impairment { check: Check::System, since: at(0) };
        assert_eq!(ill.verdict(Ward { nodes: 10, ill: 2 }, at(200)), Verdict::Ends(impaired));
        assert_eq!(ill.verdict(Ward { nodes: 10, ill: 3 }, at(200)), Verdict::Spared(impaired));
        assert_eq!(ill.verdict(Ward { nodes: 1, ill: 1 }, at(200)), Verdict::Ends(impaired), "a pool of one node");
    }

    #[test]
    fn what_is_planned_is_heeded_until_it_is_over() {
        for code in EVENT_CODES {
            let planned = health(&[], &[(code, "The instance is running on degraded hardware")]);
            assert_eq!(planned.verdict(ALONE, at(0)), Verdict::Leaves(&planned.events[0]), "{code}");
            for over in ["[Completed] it was", "[Canceled] it is not"] {
                assert_eq!(health(&[], &[(code, over)]).verdict(ALONE, at(0)), Verdict::Stays, "{code} {over}");
            }
        }
        assert_eq!(health(&[], &[("instance-repainting", "soon")]).verdict(ALONE, at(0)), Verdict::Stays);
        let second = health(&[], &[("system-reboot", "[Completed] it was"), ("instance-stop", "soon")]);
        assert_eq!(second.verdict(ALONE, at(0)), Verdict::Leaves(&second.events[1]));
    }

    #[test]
    fn an_instance_that_failed_is_not_drained_at_leisure() {
        let both = health(&[(Check::Instance, 0)], &[("instance-retirement", "soon")]);
        assert!(matches!(both.verdict(ALONE, at(119)), Verdict::Leaves(_)));
        assert!(matches!(both.verdict(ALONE, at(120)), Verdict::Ends(_)));
        let many = Ward { nodes: 10, ill: 9 };
        assert!(matches!(both.verdict(many, at(120)), Verdict::Leaves(_)), "its own event is no fault elsewhere");
    }
}
