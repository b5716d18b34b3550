//! Instance types: what they are, what a node of each holds, what they cost, and how to ask for them quickly.

mod builtin;
mod facts;
mod instance_type;
mod offering;
pub mod overhead;
mod price;
mod table;

pub use builtin::{builtin, builtin_type};
pub use facts::{Accelerator, Arch, Gpu, InstanceFacts, NameParts};
pub use instance_type::{InstanceType, offerings};
pub use offering::{CapacityType, Offering, Reservation, UnknownCapacityType, Zone};
pub use overhead::{NodeSettings, Threshold};
pub use price::{Price, estimate_on_demand, estimate_spot};
pub use table::{Catalogue, Market, RankedOffering, TypeSet};
