//! What prices are measured against: a price that no packing can go below, and the price of Karpenter's rule. Neither is in the library.

pub mod bound;
pub mod first_fit;
