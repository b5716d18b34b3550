//! Who of a batch gets which of its instances. One request launches for many claims, and EC2 does not say for whom each instance is: any
//! of them is right for any of the claims, but no two claims may go by one, and none may be forgotten.

use std::collections::{BTreeMap, BTreeSet};

use super::garbage::instance_id;
use super::launch::batch;
use super::step::provider_id;
use crate::api::NodeClaim;

/// Knows which instance of a batch each of its claims was given by this process, before the claims say so themselves.
///
/// A fresh process knows nothing, and [`Seats::seek`]s. Until it has written to each claim of the batch that has no instance, what an earlier
/// process was about to write may still come to pass; after that, it is refused as out of date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    /// By the claim's UID.
    given: BTreeMap<String, String>,
}

impl Seats {
    /// Gives the instances of a whole answer to the claims that it was asked for, each in its order. There may be fewer instances.
    #[must_use]
    pub fn answered<'c>(claims: impl IntoIterator<Item = &'c NodeClaim>, instances: &[String]) -> Self {
        let mut claims: Vec<&NodeClaim> = claims.into_iter().collect();
        claims.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let instances: BTreeSet<&String> = instances.iter().collect();
        Self { given: claims.into_iter().map(uid).zip(instances.into_iter().cloned()).collect() }
    }

    /// Gives instances that were found by the batch's tag to claims that have none. `claims` are the cluster's, as the API server has them
    /// now: whoever goes by an instance keeps it, whatever this process had in mind.
    pub fn seek(&mut self, id: &str, found: &[String], claims: &[NodeClaim]) {
        let mut waiting: Vec<&NodeClaim> =
            claims.iter().filter(|claim| batch(claim) == Some(id) && provider_id(claim).is_none()).collect();
        let uids: BTreeSet<String> = waiting.iter().copied().map(uid).collect();
        let held: BTreeSet<&str> = claims.iter().filter_map(provider_id).map(instance_id).collect();
        self.given.retain(|uid, instance| uids.contains(uid) && !held.contains(instance_id(instance)));
        let given: BTreeSet<&str> = self.given.values().map(|instance| instance_id(instance)).collect();
        let taken = |instance: &str| held.contains(instance) || given.contains(instance);
        let free: BTreeSet<String> = found.iter().filter(|one| !taken(instance_id(one))).cloned().collect();
        waiting.retain(|claim| !self.given.contains_key(&uid(claim)));
        // who leaves comes last: what is left over ends with it
        waiting.sort_by_key(|claim| (claim.metadata.deletion_timestamp.is_some(), claim.metadata.name.clone()));
        self.given.extend(waiting.into_iter().map(uid).zip(free));
    }

    /// Returns the instance that a claim was given.
    #[must_use]
    pub fn of(&self, claim: &NodeClaim) -> Option<&str> {
        self.given.get(&uid(claim)).map(String::as_str)
    }
}

fn uid(claim: &NodeClaim) -> String {
    claim.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::super::launch::BATCH;
    use super::*;
    use crate::api::NodeClaimSpec;

    fn claim(name: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, NodeClaimSpec::default());
        claim.metadata.uid = Some(format!("uid-{name}"));
        claim.metadata.annotations = Some([(BATCH.to_owned(), "b1".to_owned())].into());
        claim
    }

    fn with_instance(name: &str, id: &str) -> NodeClaim {
        let mut claim = claim(name);
        claim.status.get_or_insert_default().provider_id = Some(id.to_owned());
        claim
    }

    fn ids(all: &[&str]) -> Vec<String> {
        all.iter().map(|id| (*id).to_owned()).collect()
    }

    fn of<'s>(seats: &'s Seats, names: &[&str]) -> Vec<Option<&'s str>> {
        names.iter().map(|name| seats.of(&claim(name))).collect()
    }

    #[test]
    fn an_answer_is_given_out_in_order_whatever_order_it_comes_in() {
        let claims = [claim("b"), claim("a"), claim("c")];
        let seats = Seats::answered(&claims, &ids(&["i-2", "i-1"]));
        assert_eq!(of(&seats, &["a", "b", "c"]), [Some("i-1"), Some("i-2"), None]);
    }

    #[test]
    fn what_is_found_goes_to_those_who_have_none() {
        let mut seats = Seats::default();
        let claims = [with_instance("a", "i-2"), claim("b"), claim("c")];
        seats.seek("b1", &ids(&["i-3", "i-2"]), &claims);
        assert_eq!(of(&seats, &["a", "b", "c"]), [None, Some("i-3"), None], "i-2 is taken");
        seats.seek("b1", &ids(&["i-1", "i-2", "i-3"]), &claims);
        assert_eq!(of(&seats, &["b", "c"]), [Some("i-3"), Some("i-1")], "what was given stays");
    }

    #[test]
    fn what_claims_say_goes_before_what_was_meant() {
        let mut seats = Seats::answered(&[claim("a"), claim("b")], &ids(&["i-1", "i-2"]));
        // an earlier process wrote another instance
        seats.seek("b1", &ids(&["i-1", "i-2"]), &[with_instance("a", "i-2"), claim("b")]);
        assert_eq!(of(&seats, &["a", "b"]), [None, Some("i-1")]);
        let mut other = with_instance("x", "aws:////i-3");
        other.metadata.annotations = None;
        let mut seats = Seats::default();
        seats.seek("b1", &ids(&["aws:///a/i-3"]), &[other, claim("a")]);
        assert_eq!(of(&seats, &["a"]), [None], "whoever goes by it, even where EC2 left the zone out");
    }

    #[test]
    fn only_claims_of_the_batch_are_given_anything_and_those_that_leave_are_last() {
        let mut other = claim("a");
        other.metadata.annotations = Some([(BATCH.to_owned(), "b2".to_owned())].into());
        let mut leaves = claim("b");
        leaves.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let mut seats = Seats::default();
        seats.seek("b1", &ids(&["i-1"]), &[other.clone(), leaves.clone(), claim("c")]);
        assert_eq!(of(&seats, &["a", "b", "c"]), [None, None, Some("i-1")]);
        seats.seek("b1", &ids(&["i-1", "i-2"]), &[other, leaves, claim("c")]);
        assert_eq!(of(&seats, &["b", "c"]), [Some("i-2"), Some("i-1")]);
    }
}
