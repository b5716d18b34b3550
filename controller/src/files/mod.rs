//! Kubernetes objects from files: what the subcommands that ask the engine share.

mod adopt;
mod buffers;
mod catalogue;
mod expand;
mod manifest;
mod object;
mod place;
mod redact;
mod source;
mod text;
mod words;
mod world;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;
use karp_domain::api::{CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool};
use rayon::prelude::*;

pub use adopt::adopt;
pub use buffers::{Unready, unready};
pub use catalogue::{Known, Offered, zones_for};
pub use expand::{admit, ensure_pool, expand, has_ended, workloads};
pub use manifest::{Manifest, manifests};
pub use redact::Redact;
pub use world::{readable, snapshot};

/// Problems told at once; a broken generator breaks every object in the same way.
const PROBLEMS_TOLD: usize = 10;

/// Holds objects as the API describes them, each with the place where it was found.
#[derive(Default)]
#[allow(missing_docs)] // the kinds name themselves
pub struct Objects {
    pub pods: Vec<Found<core::Pod>>,
    pub nodes: Vec<Found<core::Node>>,
    pub claims: Vec<Found<NodeClaim>>,
    pub pools: Vec<Found<NodePool>>,
    pub classes: Vec<Found<Ec2NodeClass>>,
    pub overlays: Vec<Found<NodeOverlay>>,
    pub buffers: Vec<Found<CapacityBuffer>>,
    /// What buffers say that their pods are like.
    pub pod_templates: Vec<Found<core::PodTemplate>>,
    pub daemons: Vec<Found<apps::DaemonSet>>,
    pub limit_ranges: Vec<Found<core::LimitRange>>,
    pub budgets: Vec<Found<policy::PodDisruptionBudget>>,
    pub namespaces: Vec<Found<core::Namespace>>,
    pub volumes: Vec<Found<core::PersistentVolume>>,
    pub volume_claims: Vec<Found<core::PersistentVolumeClaim>>,
    pub storage_classes: Vec<Found<storage::StorageClass>>,
    pub csi_nodes: Vec<Found<storage::CSINode>>,
    pub attachments: Vec<Found<storage::VolumeAttachment>>,
    pub priority_classes: Vec<Found<scheduling::PriorityClass>>,
    /// Those in which a controller keeps something.
    pub config_maps: Vec<Found<core::ConfigMap>>,
    pub deployments: Vec<Found<apps::Deployment>>,
    pub replica_sets: Vec<Found<apps::ReplicaSet>>,
    pub stateful_sets: Vec<Found<apps::StatefulSet>>,
    pub replication_controllers: Vec<Found<core::ReplicationController>>,
    pub jobs: Vec<Found<batch::Job>>,
    pub cron_jobs: Vec<Found<batch::CronJob>>,
    /// Objects of kinds that decide nothing, by kind.
    pub passed: BTreeMap<String, usize>,
    /// What was read but deserves a look.
    pub warnings: Vec<Problem>,
}

/// An object and where it was found.
pub struct Found<T> {
    /// The object.
    pub object: Box<T>,
    /// Where it begins.
    pub origin: Origin,
}

/// A place in a file, or no place in it when the line is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file, as it was named.
    pub file: Arc<Path>,
    /// Line, from 1.
    pub line: usize,
}

impl Origin {
    /// Names a file, or what stands in its place.
    pub fn new(file: &Path) -> Self {
        Origin { file: file.into(), line: 0 }
    }

    fn at(&self, line: usize) -> Self {
        Origin { file: self.file.clone(), line }
    }

    /// Says what is wrong here.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { origin: self.clone(), message: message.into() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// What, with the object and the field where they are known.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

/// Says what cannot be used of the input; never empty.
#[derive(Debug)]
pub struct BadInput(pub Vec<Problem>);

impl From<Problem> for BadInput {
    fn from(problem: Problem) -> Self {
        BadInput(vec![problem])
    }
}

impl std::error::Error for BadInput {}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().take(PROBLEMS_TOLD).enumerate() {
            write!(f, "{}{problem}", if at > 0 { "\n" } else { "" })?;
        }
        match self.0.len().saturating_sub(PROBLEMS_TOLD) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// Reads every object of some files and directories; `-` is standard input.
///
/// # Errors
/// [`BadInput`] when a file cannot be read, or holds an object that is not what its kind says.
pub fn read(paths: &[PathBuf]) -> Result<Objects, BadInput> {
    let mut objects = Objects::default();
    let mut problems = Vec::new();
    for file in source::files(paths)? {
        let origin = Origin::new(&file);
        let text = source::text(&file)?;
        let pieces = match text::split(&text, &file) {
            Ok(pieces) => pieces,
            Err(fault) => {
                problems.push(origin.at(fault.line).problem(fault.message));
                continue;
            }
        };
        let read: Vec<_> = pieces.par_iter().map(object::read).collect();
        for (piece, read) in pieces.iter().zip(read) {
            let place = origin.at(piece.line);
            match read {
                Ok((read, doubts)) => {
                    let doubts = doubts.into_iter().map(|doubt| place.at(doubt.line).problem(doubt.message));
                    objects.warnings.extend(doubts);
                    problems.extend(objects.add(read, &place).err());
                }
                Err(fault) => problems.push(place.at(fault.line).problem(fault.message)),
            }
        }
    }
    problems.extend(objects.doubles());
    if problems.is_empty() { Ok(objects) } else { Err(BadInput(problems)) }
}
