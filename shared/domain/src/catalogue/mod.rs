//! Instance types: what they are, what a node of each holds, what they cost, and how to ask for them quickly.

mod builtin;
mod demands;
mod estimate;
mod facts;
mod instance_type;
mod listing;
mod memory;
mod offering;
pub mod overhead;
mod overlay;
mod price;
mod table;
mod unavailable;

pub use crate::api::{ReservationType as ReservationKind, Tenancy};
pub use builtin::{builtin, builtin_type};
pub use demands::Demands;
pub use estimate::{estimate_on_demand, estimate_spot};
pub use facts::{Accelerator, Arch, Gpu, InstanceFacts, NameParts};
pub use instance_type::{InstanceType, offerings, region_of};
pub use listing::{ListedOffering, Listing, ListingError};
pub use memory::{News, SeenMemory};
pub use offering::{
    CapacityReservation, CapacityType, Offering, RESERVATION_LABELS, RESERVED_DIVISOR, Reservation,
    UnknownCapacityType, Zone, reserved_offerings,
};
pub use overhead::{ListedInterfaces, NodeSettings, Threshold};
pub use overlay::{Overlaid, Overlay, OverlayConflict, ParsePriceChangeError, PriceChange};
pub use price::{Price, PriceSource};
pub(crate) use table::asks_for_reservations;
pub use table::{Catalogue, Instances, Market, RankedOffering, TypeSet};
pub use unavailable::{Absent, Unavailable};
