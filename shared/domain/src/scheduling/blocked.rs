//! Which domains a rule of the topology leaves a pod, and why not the others.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::sold::{any_of, first_of};
use crate::counted;

/// A domain, and how many pods of those that a rule is about are counted in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// The value of the label.
    pub name: Arc<str>,
    /// Pods there, planned ones included.
    pub pods: u32,
    /// A node that the pod may be on is there, or can be made.
    pub possible: bool,
}

/// Says what a rule of the topology lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Blocked {
    /// No node that the pod may be on has the label.
    NoDomain {
        /// The label.
        key: Arc<str>,
    },
    /// The pod must be near pods of which there are none.
    NoPod {
        /// Which pods.
        pods: String,
    },
    /// The pod must be near pods that have no node themselves.
    NoneRuns {
        /// Which pods.
        pods: String,
    },
    /// The pods that it must be near are where it cannot be.
    Elsewhere {
        /// Where those are.
        domains: Vec<Domain>,
    },
    /// Pods that it must not be near are wherever it could be.
    Everywhere {
        /// Where it could be.
        domains: Vec<Domain>,
    },
    /// One more pod would be too many in each domain where it could be.
    Uneven {
        /// All domains that count.
        domains: Vec<Domain>,
        /// How many a domain may have.
        most: u32,
        /// How many the emptiest has.
        least: u32,
        /// `minDomains`, where there are fewer.
        min_domains: Option<u32>,
    },
    /// The rule leaves these domains, and no node for the pod is there or can be made.
    NoNode {
        /// What it leaves.
        domains: Vec<Arc<str>>,
    },
    /// No node with the pods that it must be near has room.
    Full,
    /// Several rules, none of which would keep it out alone.
    Together,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::NoDomain { key } => write!(f, "no node that it may be on has the label {key}"),
            Blocked::NoPod { pods } => write!(f, "no pod matches {pods}"),
            Blocked::NoneRuns { pods } => write!(f, "no pod that matches {pods} has a node"),
            Blocked::Elsewhere { domains } => {
                write!(f, "such pods are only where it cannot be: {}", listed(domains))
            }
            Blocked::Everywhere { domains } => {
                write!(f, "such pods are in every domain where it could be: {}", listed(domains))
            }
            Blocked::Uneven { domains, most, least, min_domains } => {
                let why = match min_domains {
                    Some(wanted) => format!(
                        "minDomains asks for {wanted} domains and there {}",
                        if domains.len() == 1 { "is one".to_owned() } else { format!("are {}", domains.len()) }
                    ),
                    None => format!("the emptiest has {least}"),
                };
                write!(f, "a domain may have {}, as {why}: {}", counted(*most as usize, "pod"), listed(domains))
            }
            Blocked::NoNode { domains } => {
                write!(f, "{} would do, where no node for it is or can be made", any_of(domains))
            }
            Blocked::Full => f.write_str("no node with such pods has room for it"),
            Blocked::Together => f.write_str("together they leave no domain"),
        }
    }
}

fn listed(domains: &[Domain]) -> String {
    let one = |domain: &Domain| {
        let not = if domain.possible { "" } else { ", out of reach" };
        format!("{} ({}{not})", domain.name, counted(domain.pods as usize, "pod"))
    };
    first_of(domains.iter().map(one), ", ")
}

impl Blocked {
    /// What an event says: no counts, which change with each pod and would make another event of it.
    pub(crate) fn event(&self) -> String {
        match self {
            Blocked::Elsewhere { .. } => "such pods are only where it cannot be".to_owned(),
            Blocked::Everywhere { .. } => "such pods are in every domain where it could be".to_owned(),
            Blocked::Uneven { min_domains: Some(wanted), .. } => {
                format!("minDomains asks for {wanted} domains, and there are fewer")
            }
            Blocked::Uneven { .. } => "each domain where it could be has as many as maxSkew allows".to_owned(),
            Blocked::NoDomain { .. }
            | Blocked::NoPod { .. }
            | Blocked::NoneRuns { .. }
            | Blocked::NoNode { .. }
            | Blocked::Full
            | Blocked::Together => self.to_string(),
        }
    }

    /// Says what would have to change.
    pub(crate) fn remedy(&self, pool: &str) -> String {
        match self {
            Blocked::NoDomain { key } => {
                format!(
                    "set the label {key} in spec.template.metadata.labels of pool {pool}, or use a topologyKey that nodes have"
                )
            }
            Blocked::NoPod { .. } => {
                "start a pod that matches, or correct labelSelector and namespaces of the affinity".to_owned()
            }
            Blocked::NoneRuns { .. } => "see why the pods that match have no node: karp explain pod".to_owned(),
            Blocked::Elsewhere { domains } => {
                let names: Vec<Arc<str>> = domains.iter().map(|domain| domain.name.clone()).collect();
                format!("let the pod and pool {pool} have {}, or relax the affinity", any_of(&names))
            }
            Blocked::Everywhere { .. } => {
                format!(
                    "let the pod and pool {pool} have more domains, or prefer the anti-affinity in place of requiring it"
                )
            }
            Blocked::Uneven { min_domains: Some(_), domains, .. } => {
                format!(
                    "let the pod and pool {pool} have more domains, lower minDomains to {}, or raise maxSkew",
                    domains.len()
                )
            }
            Blocked::Uneven { .. } => format!(
                "let the pod and pool {pool} have the domains with fewest pods, raise maxSkew, or set whenUnsatisfiable: ScheduleAnyway"
            ),
            Blocked::NoNode { domains } => {
                format!(
                    "let pool {pool} have types with room for the pod in {}, or relax the constraint",
                    any_of(domains)
                )
            }
            Blocked::Full => format!("let pool {pool} have larger types, or relax the affinity"),
            Blocked::Together => {
                format!("relax one of the constraints, or let pool {pool} have domains that are free for the pod")
            }
        }
    }
}
