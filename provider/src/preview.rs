//! What a change of a node pool or a node class will do, before it is made: which instance types may be launched then, at what price, and
//! which nodes will be replaced, why, how many at a time, and what keeps them.
//!
//! [`look`](self::look()) asks the API server and `find` AWS, [`impact`](self::impact()), `selection`, `pace` and [`block`] decide, and
//! `told` writes it down for the plan.

mod find;
mod impact;
mod look;
mod obstacle;
mod offer;
mod pace;
mod replaced;
mod selection;
mod told;

use karp_domain::catalogue::Price;
use serde::Serialize;

pub use impact::{class_impact, impact};
pub use look::{ClassPreview, PATIENCE, TOO_LONG, glance, glance_at_class, held, look, look_at_class};
pub use obstacle::{Surroundings, block, obstacles};
pub use offer::{class_offer, offer};
pub use pace::Turn;
pub use replaced::{Ending, Nodes, Replaced};
pub use told::{class_warning, unknown_warning};

/// What requirements leave to launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offer {
    /// How many instance types.
    pub types: usize,
    /// Those of them that are named, and that karp's table does not know.
    pub newer: Vec<String>,
    /// The price per hour of the cheapest of them; nothing where it is not known of any.
    pub cheapest: Option<Price>,
    /// The price per hour of the middle one, when those with a known price are ordered by it.
    pub typical: Option<Price>,
}

/// Says how sure it is that a node drifts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Certainty {
    /// It has drifted before, and this change does not mend it.
    Already,
    /// It will by this change.
    #[default]
    Sure,
    /// It depends on what the class's selectors find, or on what it was made of, which the controller finds out.
    Possible,
}

/// A node that drifts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drifting {
    /// The Node's name, or the NodeClaim's where it has none yet.
    pub name: String,
    /// Why, as its condition will say.
    pub reason: String,
    /// What forbids to disrupt it now.
    pub blocked_by: Option<String>,
    /// The attributes or labels behind the reason.
    #[serde(skip)]
    pub because: Vec<String>,
    /// How sure it is.
    #[serde(skip)]
    pub certainty: Certainty,
    /// It drifts, and nothing replaces it: it has no pool.
    #[serde(skip)]
    pub stays: bool,
    /// Its `terminationGracePeriod` ends its pods whatever they ask for.
    #[serde(skip)]
    pub forced: bool,
}

/// What a change does to the nodes that live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impact {
    /// The nodes of the pool or the class.
    pub total: u32,
    /// Those of them that are going already, whatever is changed.
    pub leaving: u32,
    /// Those that drift, with the ones that may.
    pub drifting: Vec<Drifting>,
    /// How many may be replaced at the same time, under the budgets that hold now and the limits of static pools.
    pub at_once: u32,
    /// The same before the change, where the change can be one of budgets or limits.
    pub at_once_before: Option<u32>,
    /// The limits of a static pool allow fewer at a time than its budgets do.
    pub is_narrow: bool,
    /// How many rounds it takes to replace all; nothing where a pool allows none now.
    pub waves: Option<u32>,
    /// How many may be replaced at a time later, at each change that the budgets' schedules bring within seven days.
    pub timeline: Vec<Turn>,
    /// The attributes that the change is one of.
    pub changed: Vec<String>,
    /// What the nodes have more of than the pool's limits allow.
    pub over_limit: Vec<String>,
    /// How many nodes a static pool is to have, and how many of its nodes stay, where the two differ.
    pub resized: Option<(u64, u32)>,
    /// Why it is not known what blocks the nodes.
    pub unchecked: Option<String>,
}

impl Impact {
    /// Counts those that will be replaced, and those that may be besides.
    pub fn replaced(&self) -> (usize, usize) {
        let going = || self.drifting.iter().filter(|node| !node.stays);
        let possible = going().filter(|node| node.certainty == Certainty::Possible).count();
        (going().count() - possible, possible)
    }
}

/// All that is known before a pool is changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preview {
    /// What the pool may launch now; nothing for a new pool.
    pub before: Option<Offer>,
    /// What it may launch then.
    pub after: Offer,
    /// What becomes of its nodes; nothing for a new pool.
    pub impact: Option<Impact>,
    /// Why the nodes could not be looked at.
    pub unseen: Option<String>,
    /// It has a fixed number of nodes.
    pub is_static: bool,
}

#[cfg(test)]
mod forty;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
