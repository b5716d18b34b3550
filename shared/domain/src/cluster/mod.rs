//! The cluster as the engine sees it: plain data read from the API's objects, gathered in a [`Snapshot`].

mod affinity;
mod assumed;
mod backlog;
mod budget;
mod buffer;
mod catalogues;
mod claim;
mod daemon;
mod limit_range;
mod node;
mod nomination;
mod pod;
mod pool;
mod protection;
mod shape;
mod shapes;
mod snapshot;
mod tradeoff;
mod volume;
mod watched;

use std::fmt;

pub use crate::api::{BudgetReason as Reason, ConsolidationPolicy};
pub use affinity::{HostPort, Namespaces, PodTerm, Preference, Spread, Whose};
pub use assumed::{Assumed, Reply};
pub use backlog::foresee;
pub use budget::{Budget, PodBudget, Share, Window, allowed, blocking, is_closed};
pub use buffer::{Buffer, MOST_VIRTUAL_PODS, NotReady, Reference, Referred, Workload};
pub use catalogues::Catalogues;
pub use claim::{Claim, ClassRef};
pub use daemon::DaemonSet;
pub use limit_range::{LimitRange, admitted};
pub use node::{Node, Readiness, is_ephemeral};
pub use nomination::{MOST_NOMINATED, compete, nominated};
pub use pod::{CRITICAL_PRIORITY, Digest, Owner, Phase, Pod, PodKey};
pub use pool::{Pool, budgets};
pub use protection::{DoNotDisrupt, Protection};
pub use shape::{Feature, Shape, is_resized};
pub(crate) use shape::{NAME_FIELD, NAMES, NEW_NAME};
pub use shapes::Shapes;
pub use snapshot::{Host, MinValuesPolicy, PreferencePolicy, Settings, Snapshot};
pub use tradeoff::{
    ConsolidationFloor, ExpirationGrace, ParseGraceError, ParsePercentageError, Percent, PodShare, PriceTolerance,
};
pub use volume::{ClaimRef, EBS_DRIVER, StorageClass, Volume, VolumeClaim, VolumeProblem, Volumes};
pub use watched::Watched;

/// Reports an object that could not be understood: it is left out, the others go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {field}: {problem}")]
pub struct Unreadable {
    /// Kind of the object.
    pub kind: String,
    /// Its name, with the namespace if it has one.
    pub name: String,
    /// The field to blame.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Unreadable {
    /// Makes a report.
    pub fn new(kind: &str, name: &impl fmt::Display, field: &str, problem: &str) -> Self {
        UnreadableField::new(field.to_owned(), problem.to_owned()).of(kind, name)
    }
}

/// Reports a field that could not be understood, before it is known whose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct UnreadableField {
    field: String,
    problem: String,
}

impl UnreadableField {
    fn new(field: String, problem: String) -> Self {
        UnreadableField { field, problem }
    }

    fn of(self, kind: &str, name: &impl fmt::Display) -> Unreadable {
        Unreadable { kind: kind.to_owned(), name: name.to_string(), field: self.field, problem: self.problem }
    }
}
