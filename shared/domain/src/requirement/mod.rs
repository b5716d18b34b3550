//! The algebra of label requirements: sets of values, one requirement a key, and all requirements of a pod or node together.

pub mod hint;
mod one;
mod requirements;
mod selector;
mod value_set;

pub use one::{Operator, ParseRequirementError, Requirement};
pub use requirements::{Incompatible, Requirements, Torn, Undefined};
pub use selector::{ParseSelectorError, Selector};
pub use value_set::{Bounds, Value, ValueSet};
