//! What subcommands ask about: objects from files, what can be bought, and the clock.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karp_domain::cluster::{self, Catalogues, Pool, Settings, Snapshot};
use karp_domain::scheduling::with_room_taken;
use kube::ResourceExt;
use serde::Serialize;

use crate::files::{self, BadInput, Found, Objects, Offered, Unready};
use crate::observe;
use crate::options::{FeatureGates, MinValuesPolicy, PreferencePolicy};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Holds what decides beside the objects.
#[derive(Args, Clone, Debug)]
pub struct World {
    /// JSON list of instance types to buy from; without it the built-in types at estimated prices.
    #[arg(long, value_name = "FILE")]
    pub instance_types: Option<PathBuf>,
    /// Zones in which the built-in types are offered; without it those that the objects name.
    #[arg(long, value_name = "ZONE", value_delimiter = ',', value_parser = zone, conflicts_with = "instance_types")]
    pub zones: Vec<String>,
    /// File (YAML or JSON) that says what the account really pays for the built-in types: discounts, Savings Plans, another currency.
    #[arg(long, value_name = "FILE", conflicts_with = "instance_types")]
    pub price_file: Option<PathBuf>,
    /// What the solver does with preferences.
    #[arg(long, value_enum, default_value = "Respect")]
    pub preference_policy: PreferencePolicy,
    /// What a minValues that cannot be met does.
    #[arg(long, value_enum, default_value = "Strict")]
    pub min_values_policy: MinValuesPolicy,
    /// Largest share of a pool's pods on one new node, such as 25%, where the pool has no annotation `karp.sh/max-pod-share`.
    #[arg(long, value_name = "PERCENT", default_value_t)]
    pub max_pod_share: cluster::PodShare,
    /// How much dearer than the cheapest the types may be that a new node may become, such as 20%, where the pool has no annotation
    /// `karp.sh/price-tolerance`.
    #[arg(long, value_name = "PERCENT", default_value_t)]
    pub price_tolerance: cluster::PriceTolerance,
    /// What share of its price a node full of pods must save to be given up by consolidation, such as 25%, where the pool has no annotation
    /// `karp.sh/consolidation-floor`.
    #[arg(long, value_name = "PERCENT", default_value_t)]
    pub consolidation_floor: cluster::ConsolidationFloor,
    /// Feature gates as the controller has them: SpotToSpotConsolidation and NodeRepair matter here.
    #[arg(long, value_name = "NAME=BOOL,...", default_value = "")]
    pub feature_gates: FeatureGates,
    /// The moment to decide for, as 2026-11-21T12:00:00Z; now without it.
    #[arg(long, value_name = "TIME")]
    pub now: Option<Timestamp>,
    /// Add the pods that Deployments, StatefulSets, ReplicaSets, Jobs and CronJobs lack.
    #[arg(long)]
    pub expand: bool,
}

/// Reads the name of a zone; no zone at all would leave nothing to buy, and no word why.
pub fn zone(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("a zone is wanted, such as us-east-1a; without --zones the usual ones are taken".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Objects ready to be made snapshots of.
pub struct Question {
    objects: Objects,
    source: Source,
    catalogues: Catalogues,
    settings: Settings,
    now: Timestamp,
}

/// Where objects come from.
#[derive(Clone, Copy)]
enum Source {
    /// Files, which can be put right.
    Files,
    /// A live cluster, where others may have made what cannot be understood.
    Cluster,
}

/// A volume that is attached to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Attached {
    /// The PersistentVolume.
    pub volume: String,
    /// The PersistentVolumeClaim that it is bound to.
    pub claim: Option<String>,
    /// Other nodes can have it at the same time.
    #[serde(skip)]
    pub shared: bool,
}

impl World {
    /// Reads files into a question; tells on standard error what deserves a look.
    ///
    /// # Errors
    /// [`BadInput`] when something cannot be read.
    pub fn of_files(&self, paths: &[PathBuf]) -> Result<Question, BadInput> {
        let mut objects = files::read(paths)?;
        files::ensure_pool(&mut objects);
        for warning in &objects.warnings {
            anstream::eprintln!("warning: {warning}");
        }
        for one in files::unready(&objects) {
            let message = format!("no room is kept for CapacityBuffer {}: {}", one.buffer, one.why);
            anstream::eprintln!("warning: {}", one.origin.problem(message));
        }
        if self.expand {
            files::expand(&mut objects);
        } else if objects.pods.is_empty() && files::workloads(&objects) > 0 {
            let (verb, count) = match files::workloads(&objects) {
                1 => ("is", "one workload".to_owned()),
                many => ("are", format!("{many} workloads")),
            };
            anstream::eprintln!("note: there {verb} {count} and no pod; --expand makes the pods");
        }
        self.question(objects, Source::Files)
    }

    /// Makes a question of a live cluster's objects.
    ///
    /// # Errors
    /// [`BadInput`] when the file of instance types cannot be read.
    pub fn of_cluster(&self, objects: Objects) -> Result<Question, BadInput> {
        if self.expand {
            anstream::eprintln!("note: --expand is for files: the cluster's controllers make the pods");
        }
        self.question(objects, Source::Cluster)
    }

    fn question(&self, mut objects: Objects, source: Source) -> Result<Question, BadInput> {
        for gate in self.feature_gates.unknown() {
            anstream::eprintln!("warning: --feature-gates: there is no feature gate {gate:?}; it is passed over");
        }
        files::admit(&mut objects);
        let offered = Offered::new(self.instance_types.as_deref(), &self.zones, self.price_file.as_deref())?;
        let now = self.now.unwrap_or_else(Timestamp::now);
        let catalogues = offered.catalogues(&objects, now);
        let settings = Settings {
            spot_to_spot: self.feature_gates.enabled("SpotToSpotConsolidation"),
            repair: self.feature_gates.enabled("NodeRepair"),
            // files that hold static pools mean them
            static_capacity: true,
            preferences: self.preference_policy.into(),
            min_values: self.min_values_policy.into(),
            max_pod_share: self.max_pod_share,
            price_tolerance: self.price_tolerance,
            consolidation_floor: self.consolidation_floor,
            ..Settings::default()
        };
        Ok(Question { objects, source, catalogues, settings, now })
    }
}

impl Question {
    /// Makes a snapshot: the way from API objects to what the engine reads. Nodes of static pools count as replicas, also without NodeClaims.
    /// What cannot be understood of a live cluster is told and left out.
    ///
    /// # Errors
    /// [`BadInput`] with every object of files that cannot be understood.
    pub fn snapshot(&self) -> Result<Snapshot, BadInput> {
        let mut snapshot = self.read()?;
        files::adopt(&mut snapshot, Pool::is_static);
        Ok(snapshot)
    }

    /// Makes a snapshot to ask about nodes: those of a pool whose NodeClaims are missing get one, and it is told. Room that is kept for
    /// buffers is taken, as it is for the controller.
    ///
    /// # Errors
    /// [`BadInput`] with every object of files that cannot be understood.
    pub fn cluster(&self) -> Result<Snapshot, BadInput> {
        let mut snapshot = self.read()?;
        match files::adopt(&mut snapshot, |_| true) {
            0 => {}
            1 => anstream::eprintln!("note: a node of a pool has no NodeClaim; it is taken for initialized"),
            many => {
                anstream::eprintln!("note: {many} nodes of pools have no NodeClaims; they are taken for initialized");
            }
        }
        Ok(with_room_taken(snapshot))
    }

    /// Answers the volumes that are attached to a node, by name, each with the claim that it is bound to.
    pub fn attached_to(&self, node: &str) -> Vec<Attached> {
        let on_it = |found: &&Found<VolumeAttachment>| found.object.spec.node_name == node;
        let named = |found: &Found<VolumeAttachment>| {
            let volume = found.object.spec.source.persistent_volume_name.clone();
            // one that a pod names without a PersistentVolume
            let volume = volume.unwrap_or_else(|| found.object.name_any());
            let of = self.objects.volumes.iter().find(|known| known.object.name_any() == volume);
            let shared = of.is_some_and(|found| observe::is_shared(&found.object));
            let claim = of.and_then(|found| found.object.spec.as_ref()?.claim_ref.clone());
            let claim = claim.and_then(|claim| Some(format!("{}/{}", claim.namespace?, claim.name?)));
            Attached { volume, claim, shared }
        };
        let mut attached: Vec<Attached> = self.objects.attachments.iter().filter(on_it).map(named).collect();
        attached.sort();
        attached
    }

    /// Answers the buffers for which no room can be kept.
    pub fn unready(&self) -> impl Iterator<Item = Unready<'_>> {
        files::unready(&self.objects)
    }

    fn read(&self) -> Result<Snapshot, BadInput> {
        let (catalogues, settings) = (self.catalogues.clone(), self.settings.clone());
        match self.source {
            Source::Files => files::snapshot(&self.objects, catalogues, settings, self.now),
            Source::Cluster => {
                let (snapshot, problems) = files::readable(&self.objects, catalogues, settings, self.now);
                for line in BadInput(problems).to_string().lines() {
                    anstream::eprintln!("warning: left out: {line}");
                }
                Ok(snapshot)
            }
        }
    }
}
