//! An offering: one way to buy one instance type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Price;

/// Says how an instance is bought; ordered by what is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// Paid already by a capacity reservation.
    Reserved,
    /// Spare capacity that EC2 may take back with two minutes' notice.
    Spot,
    /// Bought by the hour.
    OnDemand,
}

impl CapacityType {
    /// Every capacity type, in the order in which they are tried.
    pub const ALL: [CapacityType; 3] = [CapacityType::Reserved, CapacityType::Spot, CapacityType::OnDemand];

    /// Answers the value of `karpenter.sh/capacity-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            CapacityType::Reserved => "reserved",
            CapacityType::Spot => "spot",
            CapacityType::OnDemand => "on-demand",
        }
    }
}

impl fmt::Display for CapacityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reports a capacity type that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown capacity type {0:?}: spot, on-demand or reserved")]
pub struct UnknownCapacityType(pub String);

impl FromStr for CapacityType {
    type Err = UnknownCapacityType;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        CapacityType::ALL.into_iter().find(|t| t.as_str() == text).ok_or_else(|| UnknownCapacityType(text.to_owned()))
    }
}

/// Names an availability zone by its name in this account (`us-east-1a`) and its id in all accounts (`use1-az1`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Zone {
    /// Name, as in `topology.kubernetes.io/zone`.
    pub name: Arc<str>,
    /// Id, as in `topology.k8s.aws/zone-id`; empty when it is not known.
    pub id: Arc<str>,
}

impl Zone {
    /// Makes a zone from its name and id.
    pub fn new(name: &str, id: &str) -> Self {
        Zone { name: name.into(), id: id.into() }
    }
}

/// Describes one way to buy an instance type: how, where, for how much, and whether it can be had now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offering {
    /// How it is bought.
    pub capacity_type: CapacityType,
    /// Where it runs.
    pub zone: Zone,
    /// Price per hour.
    pub price: Price,
    /// The price comes from `estimate_on_demand` or `estimate_spot`, not from EC2.
    pub estimated: bool,
    /// Can be asked for now: it has a subnet, a price, and no recent capacity error.
    pub available: bool,
    /// The capacity reservation behind a `Reserved` offering.
    pub reservation: Option<Reservation>,
}

/// Names a capacity reservation and how many instances it still has room for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Id, `cr-…`.
    pub id: Arc<str>,
    /// Free instances.
    pub remaining: u32,
}
