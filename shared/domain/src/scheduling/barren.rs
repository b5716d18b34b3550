//! Pools of which nothing can be bought, whatever pods ask for.

use std::fmt;
use std::sync::Arc;

use super::growth::values_of;
use super::problem::open_catalogue;
use super::reservations;
use super::sold::{Places, sold};
use crate::cluster::{MinValuesPolicy, Pool, Snapshot};
use crate::counted;

/// Says why nothing of a pool can be bought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No instance type of its class has the labels that the pool asks for.
    Types {
        /// What no type has, whatever else is asked for; none where it takes several requirements to leave nothing.
        wanted: Option<String>,
    },
    /// Types with those labels exist, and all are missing now in the zones and capacity types that the pool leaves.
    Offerings,
    /// Types with those labels exist, and none is sold in the zones and capacity types that the pool leaves.
    NotSold {
        /// What the pool leaves.
        wanted: Places,
        /// Where and how they are sold.
        offered: Places,
    },
    /// What is offered has too few values of a label for `minValues`.
    Values {
        /// The label.
        key: Arc<str>,
        /// How many it takes.
        wanted: u32,
        /// How many there are.
        found: u32,
    },
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodePool requirements leave nothing to launch: ")?;
        match self {
            Lack::Types { wanted: Some(wanted) } => write!(f, "no instance type of its class has {wanted}"),
            Lack::Types { wanted: None } => {
                f.write_str("no instance type of its class has all the labels that they ask for")
            }
            Lack::Offerings => f.write_str(
                "all instance types that they name are out of capacity now, in their zones and capacity types",
            ),
            Lack::NotSold { wanted, offered } => {
                write!(f, "no instance type that they name is sold {wanted}, only {offered}")
            }
            Lack::Values { key, wanted, found } => {
                let values = counted(*wanted as usize, "value");
                write!(f, "minValues asks for {values} of {key}, what is offered has {found}")
            }
        }
    }
}

/// Answers the pools that are ready to grow and of which nothing can be bought, by name; limits do not matter.
pub fn barren(snapshot: &Snapshot) -> Vec<(Arc<str>, Lack)> {
    let catalogues = reservations::open(snapshot);
    let lack = |pool: &Pool| {
        let catalogue = open_catalogue(pool, &catalogues).ok()?;
        let (mut types, market) = catalogue.select(&pool.requirements);
        if types.is_clear() {
            let unmet = || catalogue.unmet(&pool.requirements).map(ToString::to_string);
            return Some(Lack::Types { wanted: pool.torn.values().next().cloned().or_else(unmet) });
        }
        types.intersect_with(&catalogue.offered(market));
        if types.is_clear() {
            let sold = sold(&catalogue, &pool.requirements, &catalogue.select(&pool.requirements).0, market);
            return Some(match sold {
                Ok(_) => Lack::Offerings,
                Err((wanted, offered)) => Lack::NotSold { wanted, offered },
            });
        }
        if snapshot.settings.min_values != MinValuesPolicy::Strict {
            return None;
        }
        pool.min_values.iter().find_map(|(key, wanted)| {
            let found = values_of(&catalogue, &pool.requirements, &types, key);
            (found < *wanted).then(|| Lack::Values { key: key.clone(), wanted: *wanted, found })
        })
    };
    let pools = snapshot.pools.iter().filter(|pool| pool.is_ours());
    let mut found: Vec<_> = pools.filter_map(|pool| Some((pool.name.clone(), lack(pool)?))).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
