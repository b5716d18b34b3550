//! Which prices of karp's nodes are guesses, so that they are marked where they are told.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::labels;
use karp_domain::catalogue::Offering;
use karp_domain::cluster::{Host, Snapshot};
use karp_domain::disruption::Command;

use super::simulate::is_estimated;

/// Holds the NodeClaims whose nodes' prices are guesses.
pub struct Estimates(BTreeSet<Arc<str>>);

impl Estimates {
    /// Finds them by the offerings that the nodes were bought from, as the engine finds their prices.
    pub fn of(snapshot: &Snapshot) -> Self {
        let guessed = |host: &Host| {
            let claim = host.claim.as_ref().filter(|claim| claim.class.is_ours())?;
            let catalogue = snapshot.catalogues.of(&claim.class.name, claim.pool.as_deref())?;
            let kind = catalogue.get(host.label(labels::INSTANCE_TYPE)?)?;
            let (zone, capacity_type) = (host.label(labels::ZONE)?, host.label(labels::CAPACITY_TYPE)?);
            let same = |one: &&Offering| *one.zone.name == *zone && one.capacity_type.as_str() == capacity_type;
            kind.offerings.iter().find(same).filter(|one| one.is_estimated()).map(|_| claim.name.clone())
        };
        Estimates(snapshot.hosts().iter().filter_map(guessed).collect())
    }

    /// Says whether there are any.
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Says whether the price of a NodeClaim's node is one.
    pub fn has(&self, claim: &str) -> bool {
        self.0.contains(claim)
    }

    /// Says whether one is in what a command saves.
    pub fn decide(&self, command: &Command) -> bool {
        command.candidates.iter().any(|candidate| self.has(&candidate.claim))
            || command.replacements.iter().any(is_estimated)
    }
}
