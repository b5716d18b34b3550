//! Budgets as they are used up within a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::candidate::{Entry, Field};
use super::{Cause, KeepReason};

/// Holds what a plan has spent of each pool's budget for one cause.
pub(super) struct Purse<'f, 'a> {
    field: &'f Field<'a>,
    cause: Cause,
    spent: BTreeMap<Arc<str>, u32>,
}

impl<'f, 'a> Purse<'f, 'a> {
    pub(super) fn new(field: &'f Field<'a>, cause: Cause) -> Self {
        Purse { field, cause, spent: BTreeMap::new() }
    }

    /// Takes one node's worth; answers why not otherwise.
    pub(super) fn spend(&mut self, entry: &Entry) -> Result<(), KeepReason> {
        if self.cause.budget().is_none() {
            return Ok(());
        }
        let Some(pool) = &entry.pool else { return Err(KeepReason::NoPool) };
        let spent = self.spent.entry(pool.name.clone()).or_default();
        match (*spent < self.field.budget(pool, self.cause), self.cause.budget()) {
            (false, Some(reason)) => Err(KeepReason::BudgetExhausted { pool: pool.name.clone(), reason }),
            _ => {
                *spent += 1;
                Ok(())
            }
        }
    }

    /// Answers whether budgets allow all of these at once.
    pub(super) fn allows(field: &Field<'_>, cause: Cause, set: &[&Entry]) -> Result<(), KeepReason> {
        let mut purse = Purse::new(field, cause);
        set.iter().try_for_each(|entry| purse.spend(entry))
    }
}
