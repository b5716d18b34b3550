//! An offering: one way to buy one instance type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Price, PriceSource, ReservationKind, Tenancy};
use crate::api::labels;
use crate::requirement::Requirements;

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
    /// Where the price comes from.
    pub source: PriceSource,
    /// Can be asked for now: it has a subnet, a price, and no recent capacity error.
    pub available: bool,
    /// The capacity reservation behind a `Reserved` offering.
    pub reservation: Option<Reservation>,
}

impl Offering {
    /// Answers the value of a label that nodes take from their offering: zone, capacity type and those of a capacity reservation.
    /// `None` for a label that this offering does not give, and for all others.
    pub fn label(&self, key: &str) -> Option<&str> {
        let reservation = self.reservation.as_ref();
        match key {
            labels::ZONE => Some(&self.zone.name),
            labels::ZONE_ID => Some(&*self.zone.id).filter(|id| !id.is_empty()),
            labels::CAPACITY_TYPE => Some(self.capacity_type.as_str()),
            labels::CAPACITY_RESERVATION_ID => reservation.map(|r| &*r.id),
            labels::CAPACITY_RESERVATION_TYPE => reservation.map(|r| r.kind.as_str()),
            labels::CAPACITY_RESERVATION_INTERRUPTIBLE => {
                reservation.map(|r| if r.interruptible { "true" } else { "false" })
            }
            _ => None,
        }
    }

    /// Says whether offerings, not types, give nodes this label.
    pub fn gives(key: &str) -> bool {
        LABELS.contains(&key)
    }

    /// Says whether a node bought this way can satisfy requirements, looking only at labels that come from offerings. A zone whose
    /// id is not known satisfies every requirement on the id.
    pub fn satisfies(&self, requirements: &Requirements) -> bool {
        LABELS.iter().filter_map(|key| requirements.get(key)).all(|wanted| match self.label(wanted.key()) {
            Some(value) => wanted.admits(value),
            None => wanted.key() == labels::ZONE_ID || wanted.admits_absence(),
        })
    }

    /// Says whether a node of requirements can be bought this way: what it is bought from is of the node's tenancy, too.
    pub fn suits(&self, requirements: &Requirements) -> bool {
        self.is_of(Tenancy::of(requirements)) && self.satisfies(requirements)
    }

    /// Says whether nodes of a tenancy can be bought this way. What is not reserved is sold for both.
    pub fn is_of(&self, tenancy: Tenancy) -> bool {
        self.reservation.as_ref().is_none_or(|held| held.tenancy == tenancy)
    }

    /// Says whether the price is a guess by [`super::estimate_on_demand`] or [`super::estimate_spot`].
    pub fn is_estimated(&self) -> bool {
        self.source == PriceSource::Estimated
    }
}

/// The labels that nodes take from a capacity reservation.
pub const RESERVATION_LABELS: [&str; 3] =
    [labels::CAPACITY_RESERVATION_ID, labels::CAPACITY_RESERVATION_TYPE, labels::CAPACITY_RESERVATION_INTERRUPTIBLE];

/// The labels that nodes take from their offering.
const LABELS: [&str; 6] = [
    labels::ZONE,
    labels::ZONE_ID,
    labels::CAPACITY_TYPE,
    labels::CAPACITY_RESERVATION_ID,
    labels::CAPACITY_RESERVATION_TYPE,
    labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
];

/// Names a capacity reservation and how many instances it still has room for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Id, `cr-…`.
    pub id: Arc<str>,
    /// How the reservation was made.
    pub kind: ReservationKind,
    /// The owner of the reservation may take the instances back.
    pub interruptible: bool,
    /// Whose hardware it is: nodes of another tenancy cannot take it.
    #[serde(default, skip_serializing_if = "Tenancy::is_default")]
    pub tenancy: Tenancy,
    /// Free instances.
    pub remaining: u32,
}

/// Describes a capacity reservation that a node class selects, as far as offerings follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityReservation {
    /// The instance type that it holds.
    pub instance_type: Arc<str>,
    /// The name of the zone that it holds it in.
    pub zone: Arc<str>,
    /// Id, kind and room.
    pub reservation: Reservation,
    /// It ends soon: nothing new may start on it.
    pub expiring: bool,
}

/// Makes the reserved offerings of a type in the zones at hand. What runs on a reservation is paid already, so the price is the
/// on-demand price over [`RESERVED_DIVISOR`], as in Karpenter: next to nothing, and still in the order of the types' prices.
pub fn reserved_offerings(
    instance_type: &str,
    zones: &[Zone],
    reservations: &[CapacityReservation],
    on_demand: Price,
) -> Vec<Offering> {
    let of_type = reservations.iter().filter(|r| &*r.instance_type == instance_type);
    let offering = |held: &CapacityReservation| {
        let zone = zones.iter().find(|zone| zone.name == held.zone)?;
        Some(Offering {
            capacity_type: CapacityType::Reserved,
            zone: zone.clone(),
            price: on_demand.scaled(1, RESERVED_DIVISOR),
            source: PriceSource::Published,
            available: !held.expiring && held.reservation.remaining > 0,
            reservation: Some(held.reservation.clone()),
        })
    };
    of_type.filter_map(offering).collect()
}

/// What the on-demand price is divided by for instances of a capacity reservation (Karpenter's figure).
pub const RESERVED_DIVISOR: u64 = 10_000_000;
