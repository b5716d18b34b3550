//! What was written and may not be seen yet: a decision that is made before the watches show it must reckon with it all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Claim, Snapshot};
use crate::api::{NodeClaim, labels};

/// A claim that the watch has not shown for so long may have gone without being seen: it is asked for.
const DOUBT: SignedDuration = SignedDuration::from_secs(10);

/// Says what the API server answered to the creation of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is there.
    Made,
    /// It is not there.
    Refused,
    /// Nothing that says whether it is there.
    Lost,
}

/// Holds claims that were created, deleted, or taken for a disruption, until the watches show it.
#[derive(Clone, Debug, Default)]
pub struct Assumed {
    created: BTreeMap<Arc<str>, (Arc<Claim>, Timestamp)>,
    deleted: BTreeSet<Arc<str>>,
    /// Claims whose nodes were tainted.
    tainted: BTreeSet<Arc<str>>,
}

impl Assumed {
    /// The creation of a claim was asked for. One that may be there is reckoned with until somebody has looked: else its pods are launched for twice,
    /// past limits.
    pub fn asked(&mut self, claim: &NodeClaim, reply: Reply, now: Timestamp) {
        match reply {
            Reply::Made | Reply::Lost => self.created(claim, now),
            Reply::Refused => {}
        }
    }

    /// A claim was created.
    pub fn created(&mut self, claim: &NodeClaim, now: Timestamp) {
        if let Ok(claim) = Claim::from_kube(claim) {
            self.created.insert(claim.name.clone(), (Arc::new(claim), now));
        }
    }

    /// A claim was deleted.
    pub fn deleted(&mut self, claim: &str) {
        self.deleted.insert(claim.into());
        self.tainted.remove(claim);
    }

    /// The node of a claim was tainted, so that it is on its way out.
    pub fn tainted(&mut self, claim: &str) {
        self.tainted.insert(claim.into());
    }

    /// The taint of a claim's node was taken back.
    pub fn untainted(&mut self, claim: &str) {
        self.tainted.remove(claim);
    }

    /// Takes over from another controller: these are all the claims that there are, of which its last ones may not be seen yet.
    pub fn inherit<'c>(&mut self, claims: impl IntoIterator<Item = &'c NodeClaim>, now: Timestamp) {
        for claim in claims {
            self.created(claim, now);
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if claim.metadata.deletion_timestamp.is_some() {
                self.deleted(name);
            }
        }
    }

    /// Says whether a claim was created and is not seen yet.
    pub fn awaits(&self, claim: &str) -> bool {
        self.created.contains_key(claim)
    }

    /// Says whether a claim was deleted, whether or not that is seen yet.
    pub fn leaves(&self, claim: &str) -> bool {
        self.deleted.contains(claim)
    }

    /// Answers the claims that should have been seen: one that is not there is to be forgotten.
    pub fn doubtful(&self, now: Timestamp) -> Vec<Arc<str>> {
        // a clock that went back says nothing of how long it was
        let late = |since: Timestamp| now.duration_since(since).abs() >= DOUBT;
        self.created.iter().filter(|(_, (_, since))| late(*since)).map(|(name, _)| name.clone()).collect()
    }

    /// Nothing is assumed of a claim any more: it was seen, or is not there.
    pub fn forget(&mut self, claim: &str) {
        self.created.remove(claim);
        self.deleted.remove(claim);
        self.tainted.remove(claim);
    }

    /// Shows in a snapshot what the watches have not shown, and forgets what they have.
    pub fn apply(&mut self, snapshot: &mut Snapshot) {
        for claim in &snapshot.claims {
            self.created.remove(&claim.name);
        }
        snapshot.claims.extend(self.created.values().map(|(claim, _)| claim.clone()));
        if self.deleted.is_empty() && self.tainted.is_empty() {
            return;
        }
        let known: BTreeSet<Arc<str>> = snapshot.claims.iter().map(|claim| claim.name.clone()).collect();
        self.deleted.retain(|name| known.contains(name));
        self.tainted.retain(|name| known.contains(name));
        let (now, mut ids) = (snapshot.now, BTreeMap::new());
        for claim in &mut snapshot.claims {
            if self.deleted.contains(&claim.name) {
                if claim.deleting.is_some() {
                    self.deleted.remove(&claim.name);
                } else {
                    Arc::make_mut(claim).deleting = Some(now);
                }
            }
            if self.tainted.contains(&claim.name) {
                ids.extend(claim.provider_id.clone().map(|id| (id, claim.name.clone())));
            }
        }
        for node in &mut snapshot.nodes {
            let Some(claim) = node.provider_id.as_ref().and_then(|id| ids.get(id)) else { continue };
            if node.is_disrupted() || node.deleting.is_some() {
                self.tainted.remove(claim);
            } else {
                Arc::make_mut(node).taints.push(labels::disrupted_taint());
            }
        }
    }
}
