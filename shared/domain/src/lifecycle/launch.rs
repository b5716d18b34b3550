//! What a claim says of its launch before its instance is known: all that a fresh process has to go by.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::step::{is_true, provider_id};
use crate::api::{NodeClaim, conditions, labels};

/// Number of the launch attempt; part of the client token, advanced only after a definite answer.
pub const ATTEMPT: &str = "karp.sh/launch-attempt";
/// Digest of the request that was, or was about to be, made under that token; none once it has a definite answer.
pub const DIGEST: &str = "karp.sh/launch-digest";
/// The batch that the attempt is part of: one request for all its claims, under the batch's own token. The instances carry it as a tag.
pub const BATCH: &str = labels::LAUNCH_BATCH;
/// Since when the instance of an attempt is looked for, whose answer nobody has. EC2's lists lag: it may still turn up.
pub const SOUGHT_SINCE: &str = "karp.sh/launch-sought-since";

/// The reason of the condition Launched while the instance of a batch is looked for whose answer nobody has.
pub const IN_DOUBT: &str = "LaunchInDoubt";
/// The same where a claim's own token stands for another request.
pub const TOKEN_REUSED: &str = "TokenReused";

fn said<'c>(claim: &'c NodeClaim, key: &str) -> Option<&'c str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the attempt that is written on a claim; none when no launch of it was begun, or somebody wrote nonsense.
#[must_use]
pub fn attempt(claim: &NodeClaim) -> Option<u32> {
    said(claim, ATTEMPT)?.parse().ok()
}

/// Answers the client token of a launch: the same for the same attempt, so that EC2 launches once however often it is asked.
#[must_use]
pub fn token(uid: &str, attempt: u32) -> String {
    format!("{uid}-{attempt}")
}

/// Says whether a launch of the claim was begun.
#[must_use]
pub fn was_tried(claim: &NodeClaim) -> bool {
    said(claim, ATTEMPT).is_some()
}

/// Says whether a request may have been made whose answer is not known. Such a claim is asked for under its own token again, and never with
/// others: that would be a second launch.
#[must_use]
pub fn is_in_doubt(claim: &NodeClaim) -> bool {
    said(claim, DIGEST).is_some()
}

/// Returns the batch that the claim's attempt is part of.
#[must_use]
pub fn batch(claim: &NodeClaim) -> Option<&str> {
    said(claim, BATCH).filter(|id| !id.is_empty())
}

/// Says whether an attempt's instance is looked for; within, since when, if that can be read.
#[must_use]
pub fn sought_since(claim: &NodeClaim) -> Option<Option<Timestamp>> {
    said(claim, SOUGHT_SINCE).map(|since| since.parse().ok())
}

/// Returns how long an instance may still turn up in EC2's lists, which show it within `listed`; nothing once it would have.
#[must_use]
pub fn listing_left(since: Timestamp, now: Timestamp, listed: Duration) -> Option<Duration> {
    let listed = SignedDuration::try_from(listed).unwrap_or(SignedDuration::MAX);
    // A clock that went back starts the wait anew, and no more than that.
    let left = listed.saturating_sub(now.duration_since(since)).min(listed);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// Says what a claim that goes, and of whose launch nothing is listed, waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing: nothing of its launch can turn up.
    Settled,
    /// It does not say yet since when it waits, or says a time that lies ahead: it waits from now on.
    New,
    /// What may have been launched for it, for so long at most.
    Listing(Duration),
}

/// Answers what a claim that goes waits for. `settled`: EC2 refused all that was asked for it, or what it launched is known; `listed`: EC2's lists
/// show within this what was launched.
#[must_use]
pub fn doubt(claim: &NodeClaim, settled: bool, listed: Duration, now: Timestamp) -> Doubt {
    // what was found before is all that came of it
    let found = provider_id(claim).is_some() || is_true(claim, conditions::INSTANCE_TERMINATING);
    if found || settled || !is_in_doubt(claim) {
        return Doubt::Settled;
    }
    // a clock that was ahead must not hold it for as long as that
    match sought_since(claim).filter(|since| since.is_none_or(|since| since <= now)) {
        None => Doubt::New,
        Some(since) => since.and_then(|since| listing_left(since, now, listed)).map_or(Doubt::Settled, Doubt::Listing),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::NodeClaimSpec;

    #[test]
    fn a_claim_that_goes_waits_for_what_may_have_been_launched_for_it() {
        let start = Timestamp::UNIX_EPOCH;
        let at = |seconds: i64| start + SignedDuration::from_secs(seconds);
        let waits = |said: &[(&str, String)], settled: bool, second: i64| {
            let mut claim = NodeClaim::new("c", NodeClaimSpec::default());
            let said: BTreeMap<String, String> =
                said.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            claim.metadata.annotations = Some(said);
            doubt(&claim, settled, Duration::from_secs(30), at(second))
        };
        let begun = (DIGEST, "d".to_owned());
        let since = |seconds: i64| [begun.clone(), (SOUGHT_SINCE, at(seconds).to_string())];
        assert_eq!(waits(&[(ATTEMPT, "1".to_owned())], false, 0), Doubt::Settled, "it has a definite answer");
        assert_eq!(waits(std::slice::from_ref(&begun), true, 0), Doubt::Settled, "EC2 refused it");
        assert_eq!(waits(std::slice::from_ref(&begun), false, 0), Doubt::New);
        assert_eq!(waits(&since(0), false, 10), Doubt::Listing(Duration::from_secs(20)));
        assert_eq!(waits(&since(0), false, 30), Doubt::Settled, "it would be listed by now");
        assert_eq!(waits(&since(900), false, 10), Doubt::New, "by a clock that was ahead");
    }

    #[test]
    fn what_was_launched_without_an_answer_has_a_bounded_time_to_turn_up() {
        let start = Timestamp::UNIX_EPOCH;
        let left = |seconds: i64| {
            listing_left(start, start + SignedDuration::from_secs(seconds), Duration::from_secs(30))
                .map(|left| left.as_secs())
        };
        assert_eq!([left(0), left(29), left(30), left(9000)], [Some(30), Some(1), None, None]);
        assert_eq!(left(-500), Some(30), "a clock that went back does not wait for ever");
    }
}
