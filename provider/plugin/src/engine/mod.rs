//! What every resource has in common, driven by the schema: checking a configuration, planning a change, and settling
//! what a resource answered into a state that Terraform accepts.

mod check;
mod plan;
mod settle;

pub(crate) use check::{check, write_only_values};
pub(crate) use plan::{plan, replacements};
pub(crate) use settle::{broken_promises, conform_object, first_unknown, null_unknowns, salvage, settle};

#[cfg(test)]
mod tests;
