//! The Kubernetes API that karp speaks: Karpenter's kinds, labels, conditions and rules.

pub mod conditions;
pub mod labels;
