//! Leader election on a Lease, with client-go's semantics: 15 s lease, renewed every 2 s, given up after 10 s without a renewal.
//!
//! Expiry is judged by how long *this* process has seen the lease unchanged, on a monotonic clock, so that clocks of other machines do not
//! matter.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// How long a lease is honoured by others.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader tries to renew before it stands down; less than the lease, so that it stops before another starts.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between tries.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Judges one lease from what was seen of it; time is monotonic and given by the caller.
#[derive(Debug)]
pub struct Elector {
    me: String,
    seen: Option<(LeaseSpec, Duration)>,
    renewed: Option<Duration>,
}

/// Says what to do with the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// There is none: create it.
    Create,
    /// It is free, expired, or already ours from an earlier life: write our name.
    Take,
    /// It is ours: renew it.
    Renew,
    /// Another holds it; it may be free when this much time has passed without a renewal.
    Wait(Duration),
}

impl Elector {
    /// Makes the judge of a lease for an identity.
    pub fn new(me: impl Into<String>) -> Self {
        Self { me: me.into(), seen: None, renewed: None }
    }

    /// Notes what the API server says of the lease.
    pub fn observe(&mut self, spec: Option<&LeaseSpec>, now: Duration) {
        match spec {
            None => self.seen = None,
            Some(spec) if self.seen.as_ref().is_some_and(|(known, _)| known == spec) => {}
            Some(spec) => self.seen = Some((spec.clone(), now)),
        }
    }

    /// Says what to do next.
    pub fn next(&self, now: Duration) -> Move {
        let Some((spec, since)) = &self.seen else { return Move::Create };
        let holder = holder(spec);
        if holder == self.me {
            return if self.renewed.is_some() { Move::Renew } else { Move::Take };
        }
        if holder.is_empty() {
            return Move::Take;
        }
        match (*since + duration(spec)).checked_sub(now) {
            Some(left) if !left.is_zero() => Move::Wait(left),
            _ => Move::Take,
        }
    }

    /// Returns the spec to write when taking or renewing.
    pub fn claim(&self, wall: jiff::Timestamp) -> LeaseSpec {
        let time = Some(MicroTime(wall));
        let before = self.seen.as_ref().map(|(spec, _)| spec);
        let mine = before.is_some_and(|spec| spec.holder_identity.as_deref() == Some(&self.me));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: before.filter(|_| mine).and_then(|spec| spec.acquire_time.clone()).or_else(|| time.clone()),
            renew_time: time,
            lease_transitions: Some(if mine || before.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }

    /// Notes that the API server accepted a claim that was begun at `started`: leadership counts from then, not from the answer.
    pub fn accepted(&mut self, spec: &LeaseSpec, started: Duration, now: Duration) {
        self.observe(Some(spec), now);
        self.renewed = Some(started);
    }

    /// Returns whether this process may act.
    pub fn leads(&self, now: Duration) -> bool {
        let ours = self.seen.as_ref().is_none_or(|(spec, _)| spec.holder_identity.as_deref() == Some(&self.me));
        ours && self.renewed.is_some_and(|at| now < at + RENEW_DEADLINE)
    }

    /// Returns the lease's holder when it is another than this process.
    pub fn other(&self) -> Option<&str> {
        let holder = self.seen.as_ref()?.0.holder_identity.as_deref()?;
        (!holder.is_empty() && holder != self.me).then_some(holder)
    }
}

/// Looks on at a lease that others use: who holds it, and whether that one renews it before its eyes.
#[derive(Debug, Default)]
pub struct Onlooker {
    seen: Option<(LeaseSpec, Duration)>,
    renewed: bool,
}

/// What an onlooker knows after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight<'a> {
    /// There is no lease, or nobody holds it.
    Free,
    /// It has a holder who was not seen to renew it yet.
    Held(&'a str),
    /// Its holder renewed it between two looks, and less than the lease's length ago.
    Renewed(&'a str),
    /// Nobody has renewed it for its length: another may take it.
    Expired(&'a str),
}

impl Onlooker {
    /// Notes what the API server says of the lease, and says what that comes to.
    pub fn look(&mut self, spec: Option<&LeaseSpec>, now: Duration) -> Sight<'_> {
        match (spec, &self.seen) {
            (None, _) => *self = Self::default(),
            (Some(spec), Some((known, _))) if known == spec => {}
            (Some(spec), known) => {
                // Who was not seen to hold it before has taken it, and does not live for sure until the first renewal.
                self.renewed = known.as_ref().is_some_and(|(known, _)| {
                    holder(known) == holder(spec) && known.lease_transitions == spec.lease_transitions
                });
                self.seen = Some((spec.clone(), now));
            }
        }
        match &self.seen {
            None => Sight::Free,
            Some((spec, _)) if holder(spec).is_empty() => Sight::Free,
            Some((spec, since)) if *since + duration(spec) <= now => Sight::Expired(holder(spec)),
            Some((spec, _)) if self.renewed => Sight::Renewed(holder(spec)),
            Some((spec, _)) => Sight::Held(holder(spec)),
        }
    }
}

fn holder(spec: &LeaseSpec) -> &str {
    spec.holder_identity.as_deref().unwrap_or_default()
}

fn duration(spec: &LeaseSpec) -> Duration {
    let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    seconds.map_or(LEASE_DURATION, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: &str, renewal: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(by.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(jiff::Timestamp::from_second(renewal).expect("a time"))),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_absent_or_released_lease_is_free() {
        let mut elector = Elector::new("me");
        assert_eq!(elector.next(s(0)), Move::Create);
        elector.observe(Some(&held("", 0)), s(0));
        assert_eq!(elector.next(s(0)), Move::Take);
    }

    #[test]
    fn expiry_counts_from_our_own_sight_of_the_last_change() {
        let mut elector = Elector::new("me");
        // The renewal is years old by our clock: that says nothing.
        elector.observe(Some(&held("other", 0)), s(100));
        assert_eq!(elector.next(s(100)), Move::Wait(s(15)));
        elector.observe(Some(&held("other", 0)), s(110));
        assert_eq!(elector.next(s(110)), Move::Wait(s(5)));
        elector.observe(Some(&held("other", 2)), s(114));
        assert_eq!(elector.next(s(115)), Move::Wait(s(14)));
        assert_eq!(elector.next(s(129)), Move::Take);
    }

    #[test]
    fn a_leader_stops_before_another_may_start() {
        let mut elector = Elector::new("me");
        let mine = elector.claim(jiff::Timestamp::UNIX_EPOCH);
        elector.accepted(&mine, s(1), s(3));
        assert!(elector.leads(s(10)));
        assert!(!elector.leads(s(11)), "the deadline counts from when the renewal was sent");
        let mut other = Elector::new("other");
        other.observe(Some(&mine), s(1));
        assert!(matches!(other.next(s(11)), Move::Wait(_)));
    }

    #[test]
    fn a_lease_taken_by_another_ends_leadership_at_once() {
        let mut elector = Elector::new("me");
        elector.accepted(&elector.claim(jiff::Timestamp::UNIX_EPOCH), s(0), s(0));
        elector.observe(Some(&held("other", 1)), s(2));
        assert!(!elector.leads(s(2)));
        assert_eq!(elector.other(), Some("other"));
    }

    #[test]
    fn transitions_count_changes_of_holder_only() {
        let mut elector = Elector::new("me");
        assert_eq!(elector.claim(jiff::Timestamp::UNIX_EPOCH).lease_transitions, Some(0));
        elector.observe(Some(&held("other", 0)), s(0));
        let taken = elector.claim(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(taken.lease_transitions, Some(4));
        elector.accepted(&taken, s(20), s(20));
        assert_eq!(elector.next(s(22)), Move::Renew);
        let renewed = elector.claim(jiff::Timestamp::from_second(60).expect("a time"));
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(4), taken.acquire_time));
    }

    #[test]
    fn our_name_from_an_earlier_life_is_taken_not_renewed() {
        let mut elector = Elector::new("me");
        elector.observe(Some(&held("me", 0)), s(0));
        assert_eq!(elector.next(s(0)), Move::Take);
        assert!(!elector.leads(s(0)));
    }

    #[test]
    fn an_onlooker_believes_renewals_and_no_clock() {
        let mut onlooker = Onlooker::default();
        assert_eq!(onlooker.look(None, s(0)), Sight::Free);
        // A renewal that is years old, or to come, by our clock says nothing.
        assert_eq!(onlooker.look(Some(&held("a", 0)), s(1)), Sight::Held("a"));
        assert_eq!(onlooker.look(Some(&held("a", 0)), s(3)), Sight::Held("a"));
        assert_eq!(onlooker.look(Some(&held("a", 1)), s(4)), Sight::Renewed("a"));
        assert_eq!(onlooker.look(Some(&held("a", 1)), s(18)), Sight::Renewed("a"));
        assert_eq!(onlooker.look(Some(&held("a", 1)), s(19)), Sight::Expired("a"));
        assert_eq!(onlooker.look(Some(&held("a", 2)), s(20)), Sight::Renewed("a"));
        assert_eq!(onlooker.look(Some(&held("", 3)), s(21)), Sight::Free);
    }

    #[test]
    fn who_takes_a_lease_has_not_renewed_it_yet() {
        let mut onlooker = Onlooker::default();
        onlooker.look(Some(&held("a", 0)), s(0));
        assert_eq!(onlooker.look(Some(&held("a", 1)), s(1)), Sight::Renewed("a"));
        let taken = LeaseSpec { lease_transitions: Some(4), ..held("b", 2) };
        assert_eq!(onlooker.look(Some(&taken), s(2)), Sight::Held("b"));
        // The same name may have lost it meanwhile.
        let again = LeaseSpec { lease_transitions: Some(6), ..held("b", 3) };
        assert_eq!(onlooker.look(Some(&again), s(3)), Sight::Held("b"));
        let renewed = LeaseSpec { lease_transitions: Some(6), ..held("b", 4) };
        assert_eq!(onlooker.look(Some(&renewed), s(4)), Sight::Renewed("b"));
        assert_eq!(onlooker.look(None, s(5)), Sight::Free);
        assert_eq!(onlooker.look(Some(&renewed), s(6)), Sight::Held("b"), "one that was gone begins anew");
    }

    #[test]
    fn a_lease_that_is_never_renewed_expires_by_its_own_length() {
        let mut onlooker = Onlooker::default();
        let long = LeaseSpec { lease_duration_seconds: Some(60), ..held("a", 0) };
        onlooker.look(Some(&long), s(0));
        assert_eq!(onlooker.look(Some(&long), s(59)), Sight::Held("a"));
        assert_eq!(onlooker.look(Some(&long), s(60)), Sight::Expired("a"));
    }
}
