//! Karpenter's objects, of any version, as what becomes resources.

use std::collections::BTreeMap;

use karp_domain::api::legacy::{self, ClassInputs, Converted, Refusal};
use karp_domain::api::lint::{self, Finding};
use karp_domain::api::metadata::is_users;
use karp_domain::api::validate::ViolationKind;
use karp_domain::api::{KubeletConfiguration, labels};
use serde::Serialize;
use serde_json::Value as Json;

use super::attributes::Kind;
use crate::files::{Manifest, Origin, Problem};

/// Says what manifests leave open.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The nodes' role, for older classes that name none.
    pub role: Option<String>,
    /// The nodes' instance profile, for older classes that name none.
    pub instance_profile: Option<String>,
    /// Where the manifests come from.
    pub source: Source,
}

/// Where manifests come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// A live cluster: what is of today's version is there to be imported.
    Cluster,
    /// Files that were applied to a cluster.
    #[default]
    Files,
    /// Files of which no cluster knows.
    NewFiles,
}

/// An object that becomes a resource.
#[derive(Debug)]
pub struct Item {
    pub kind: Kind,
    pub name: String,
    /// What it was: `NodePool v1beta1`.
    pub was: String,
    pub spec: Json,
    /// What the resource puts on the object itself: its annotations and labels.
    pub metadata: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// Whether a cluster has it, so that it is imported.
    pub exists: bool,
    /// What its owner should know.
    pub notes: Vec<String>,
}

/// What came of manifests.
#[derive(Debug, Default)]
pub struct Conversion {
    /// In the order in which they are written.
    pub items: Vec<Item>,
    /// What could not be converted.
    pub refused: Vec<Problem>,
    /// What was passed over, and why.
    pub passed: Vec<Problem>,
}

/// The versions of a kind that are read, newest first.
const VERSIONS: [(Kind, &str, &str); 7] = [
    (Kind::Class, "karpenter.k8s.aws/v1", "EC2NodeClass"),
    (Kind::Class, "karpenter.k8s.aws/v1beta1", "EC2NodeClass"),
    (Kind::Class, "karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate"),
    (Kind::Pool, "karpenter.sh/v1", "NodePool"),
    (Kind::Pool, "karpenter.sh/v1beta1", "NodePool"),
    (Kind::Pool, "karpenter.sh/v1alpha5", "Provisioner"),
    (Kind::Overlay, "karpenter.sh/v1alpha1", "NodeOverlay"),
];
/// What becomes of the cluster that articles begin with.
const OF_EKSCTL: &str = "passed over, since it is eksctl's: `terraform/eks` makes such a cluster, and the provider block's `cluster_name` takes \
                         one that is there";
/// Left on a NodePool when Karpenter itself converted it.
const KEPT_KUBELET: &str = "compatibility.karpenter.sh/v1beta1-kubelet-conversion";
/// Labels and annotations by which other tools mark what is theirs.
const KEEPERS: [(&str, &str); 5] = [
    ("meta.helm.sh/release-name", "Helm"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
];

/// One of Karpenter's objects in its version.
struct Old<'a> {
    kind: Kind,
    /// Its place in [`VERSIONS`].
    age: usize,
    name: &'a str,
    manifest: &'a Manifest,
}

impl Old<'_> {
    fn is_current(&self) -> bool {
        matches!(VERSIONS[self.age], (Kind::Overlay, ..) | (_, "karpenter.sh/v1" | "karpenter.k8s.aws/v1", _))
    }

    fn was(&self) -> String {
        let (_, version, kind) = VERSIONS[self.age];
        format!("{kind} {}", version.rsplit_once('/').map_or(version, |(_, version)| version))
    }

    fn problem(&self, message: impl std::fmt::Display) -> Problem {
        self.manifest.origin.problem(format!("{} {}: {message}", self.manifest.kind, self.name))
    }

    fn item(&self, spec: Json, source: Source) -> Item {
        let exists = self.is_current() && source != Source::NewFiles;
        let (kind, name, was) = (self.kind, self.name.to_owned(), self.was());
        Item { kind, name, was, spec, metadata: self.metadata(), exists, notes: Vec::new() }
    }

    /// The annotations and labels of the object that an import would take over.
    fn metadata(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let of = |field| {
            let all = self.manifest.object["metadata"][field].as_object().into_iter().flatten();
            let own = all.filter(|(key, _)| is_users(key));
            (field, own.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
        };
        ["annotations", "labels"].map(of).into()
    }

    /// The class that a pool names, and whether it holds the class itself.
    fn class(&self) -> Option<(&str, bool)> {
        let spec = &self.manifest.object["spec"];
        match spec["provider"].is_object() {
            true => Some((self.name, true)),
            false => spec["providerRef"]["name"]
                .as_str()
                .or_else(|| spec["template"]["spec"]["nodeClassRef"]["name"].as_str())
                .map(|name| (name, false)),
        }
    }
}

/// Converts what is Karpenter's among manifests.
pub fn convert(manifests: &[Manifest], inputs: &Inputs) -> Conversion {
    let mut conversion = Conversion::default();
    let (classes, pools, overlays) = conversion.sort(manifests);
    for class in &classes {
        conversion.class(class, &pools, inputs);
    }
    for pool in pools.iter().filter(|pool| pool.manifest.object["spec"]["provider"].is_object()) {
        let inline = Old { kind: Kind::Class, ..*pool };
        if classes.iter().any(|class| class.name == pool.name) {
            conversion.refused.push(pool.problem(format!(
                "spec.provider: it becomes a node class of the pool's name, and there is another called {:?}: put it into an \
                 AWSNodeTemplate of another name",
                pool.name
            )));
        } else {
            conversion.class(&inline, &pools, inputs);
        }
    }
    for pool in &pools {
        conversion.pool(pool, &classes, inputs.source);
    }
    for overlay in &overlays {
        conversion.current(overlay, inputs.source);
    }
    conversion.items.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    conversion.refused.sort_by(|a, b| (&a.origin.file, a.origin.line).cmp(&(&b.origin.file, b.origin.line)));
    conversion
}

type Sorted<'a> = (Vec<Old<'a>>, Vec<Old<'a>>, Vec<Old<'a>>);

impl Conversion {
    /// Finds what is Karpenter's, each object once: in its newest version.
    fn sort<'a>(&mut self, manifests: &'a [Manifest]) -> Sorted<'a> {
        let mut newest: BTreeMap<(Kind, &str), Old<'a>> = BTreeMap::new();
        for manifest in manifests {
            let name = manifest.object["metadata"]["name"].as_str().unwrap_or_default();
            let Some(age) = self.age(manifest, name) else { continue };
            let old = Old { kind: VERSIONS[age].0, age, name, manifest };
            if let Some(reason) = foreign(&old) {
                self.passed.push(old.problem(reason));
                continue;
            }
            match newest.remove(&(old.kind, name)) {
                Some(other) if other.age == old.age => {
                    self.refused.push(old.problem(format!("it is at {} already", other.manifest.origin)));
                    newest.insert((old.kind, name), other);
                }
                Some(other) => {
                    let (keep, drop) = if other.age < old.age { (other, old) } else { (old, other) };
                    self.passed.push(drop.problem(format!(
                        "left out, since it is there as {} too ({})",
                        keep.was(),
                        keep.manifest.origin
                    )));
                    newest.insert((keep.kind, name), keep);
                }
                None => {
                    newest.insert((old.kind, name), old);
                }
            }
        }
        let (mut classes, mut pools, mut overlays) = (Vec::new(), Vec::new(), Vec::new());
        for old in newest.into_values() {
            match old.kind {
                Kind::Class => classes.push(old),
                Kind::Pool => pools.push(old),
                Kind::Overlay => overlays.push(old),
            }
        }
        (classes, pools, overlays)
    }

    /// Finds the place of a manifest in [`VERSIONS`]; one of another version is told.
    fn age(&mut self, manifest: &Manifest, name: &str) -> Option<usize> {
        let of_kind = |(_, _, kind): &&(Kind, &str, &str)| *kind == manifest.kind;
        let group = |version: &str| version.split_once('/').map_or(String::new(), |(group, _)| group.to_owned());
        // items of a typed list may not say their version
        let same =
            |version: &str| version == manifest.version || (manifest.version.is_empty() && version.ends_with("/v1"));
        if let Some(age) = VERSIONS.iter().position(|(_, version, kind)| *kind == manifest.kind && same(version)) {
            return Some(age);
        }
        let read: Vec<&str> = VERSIONS.iter().filter(of_kind).map(|(_, version, _)| *version).collect();
        if read.iter().any(|version| group(version) == group(&manifest.version)) {
            let what = format!("{} {name}: apiVersion: {:?} is not read", manifest.kind, manifest.version);
            self.refused.push(manifest.origin.problem(format!("{what}; {} is", read.join(" or "))));
        } else if manifest.kind == "ClusterConfig" && group(&manifest.version) == "eksctl.io" {
            self.passed.push(manifest.origin.problem(format!("ClusterConfig {name}: {OF_EKSCTL}")));
        }
        None
    }

    fn class(&mut self, class: &Old<'_>, pools: &[Old<'_>], inputs: &Inputs) {
        if class.is_current() {
            return self.current(class, inputs.source);
        }
        let kubelet = match kubelet_of(class, pools) {
            Ok(kubelet) => kubelet,
            Err(problem) => return self.refused.push(problem),
        };
        let spec = &class.manifest.object["spec"];
        // a profile of its own is kept: an input stands in only for what is not said
        let named = [&spec["instanceProfile"], &spec["provider"]["instanceProfile"]].iter().any(|own| own.is_string());
        let given = ClassInputs {
            name: None,
            role: inputs.role.clone().filter(|_| !named),
            instance_profile: inputs.instance_profile.clone(),
            kubelet,
        };
        self.older(class, legacy::node_class(&class.manifest.object, &given), inputs.source);
    }

    fn pool(&mut self, pool: &Old<'_>, classes: &[Old<'_>], source: Source) {
        let written = self.items.len();
        if pool.is_current() {
            self.current(pool, source);
        } else {
            self.older(pool, legacy::node_pool(&pool.manifest.object), source);
        }
        let Some((class, inline)) = pool.class() else { return };
        let converted = inline || classes.iter().any(|one| one.name == class && !one.is_current());
        if !pool.is_current()
            && !converted
            && legacy::kubelet(&pool.manifest.object).is_ok_and(|kubelet| kubelet.is_some())
        {
            self.refused.push(pool.problem(format!(
                "the kubelet's settings belong to the node class now: write them into `kubelet` of the karp_node_class {class:?}"
            )));
        }
        let missing = !self.items.iter().any(|item| item.kind == Kind::Class && item.name == class);
        if let (Some(item), true) = (self.items.get_mut(written), missing) {
            item.notes.push(format!("The node class {class:?} is not written here, so the cluster must have it."));
        }
    }

    /// Takes an object of today's version as it is written.
    fn current(&mut self, old: &Old<'_>, source: Source) {
        let object = &old.manifest.object;
        let violations = old.kind.violations(object);
        let (unknown, broken): (Vec<_>, Vec<_>) = violations
            .into_iter()
            .filter(|violation| violation.path.starts_with("spec"))
            .partition(|violation| violation.kind == ViolationKind::Unknown);
        if !broken.is_empty() {
            self.refused.extend(broken.iter().map(|violation| old.problem(violation)));
            return;
        }
        let spec = match source {
            Source::Cluster => object["spec"].clone(),
            Source::Files | Source::NewFiles => old.kind.filled(&object["spec"]),
        };
        let mut item = old.item(spec, source);
        item.notes =
            unknown.iter().map(|one| format!("{} is left out: the API has no such field.", one.path)).collect();
        item.notes.extend(doubts(old.kind, object));
        item.notes.extend(remarks(&object["metadata"]));
        self.items.push(item);
    }

    /// Takes what an object of an older version was converted to.
    fn older<T: Serialize>(&mut self, old: &Old<'_>, converted: Result<Converted<T>, Vec<Refusal>>, source: Source) {
        match converted {
            Ok(Converted { object, notes }) => {
                let mut object = serde_json::to_value(object).unwrap_or_default();
                let limits = ["/spec/limits/resources", "/spec/limits"].map(|path| old.manifest.object.pointer(path));
                if let (Kind::Pool, Some(limits)) = (old.kind, limits.into_iter().flatten().next()) {
                    // amounts stay as their owner wrote them
                    object["spec"]["limits"] = limits.clone();
                }
                let doubted = doubts(old.kind, &object);
                let mut item = old.item(object["spec"].take(), source);
                item.notes = notes;
                item.notes.extend(doubted);
                item.notes.extend(remarks(&old.manifest.object["metadata"]));
                self.items.push(item);
            }
            Err(refusals) => self.refused.extend(refusals.iter().map(|refusal| old.problem(advised(refusal)))),
        }
    }
}

/// Names the options of this command where a conversion asks for an input.
fn advised(refusal: &Refusal) -> String {
    let option = if refusal.path.ends_with("instanceProfile") { " (--role or --instance-profile)" } else { "" };
    format!("{refusal}{option}")
}

/// Says why an object is none of karp's.
fn foreign(old: &Old<'_>) -> Option<String> {
    let group = old.manifest.object.pointer("/spec/template/spec/nodeClassRef/group")?.as_str()?;
    (!labels::is_ours(group)).then(|| {
        format!("left out, since spec.template.spec.nodeClassRef.group is {group:?}: such pools belong to another controller")
    })
}

/// Finds the kubelet's settings of the pools of a class; they stand in the class today.
fn kubelet_of(class: &Old<'_>, pools: &[Old<'_>]) -> Result<Option<KubeletConfiguration>, Problem> {
    let mut found: Option<(&Old<'_>, Option<KubeletConfiguration>)> = None;
    for pool in pools.iter().filter(|pool| !pool.is_current()) {
        if pool.class().is_none_or(|(name, _)| name != class.name) {
            continue;
        }
        let kubelet = legacy::kubelet(&pool.manifest.object)
            .map_err(|refusals| pool.problem(refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")))?;
        match &found {
            Some((other, before)) if *before != kubelet => {
                return Err(class.problem(format!(
                    "{} {} and {} {} give the kubelet different settings, which belong to the class now: give each its own copy of the class",
                    other.manifest.kind, other.name, pool.manifest.kind, pool.name
                )));
            }
            Some(_) => {}
            None => found = Some((pool, kubelet)),
        }
    }
    Ok(found.and_then(|(_, kubelet)| kubelet))
}

/// Says what a plan will refuse or warn of although the API server takes it.
fn doubts(kind: Kind, object: &Json) -> Vec<String> {
    let named = lint::name(object);
    named.iter().chain(&kind.findings(object)).map(Finding::sentence).collect()
}

/// Says what an object's metadata tell of who looks after it.
fn remarks(metadata: &Json) -> Vec<String> {
    let mut all = Vec::new();
    let has = |key: &str| ["labels", "annotations"].iter().any(|map| !metadata[*map][key].is_null());
    let keeper = KEEPERS.iter().find(|(key, _)| has(key));
    if let Some((_, tool)) = keeper {
        all.push(format!("{tool} manages the object too: take it out there once Terraform has it."));
    }
    if !metadata["annotations"][KEPT_KUBELET].is_null() {
        all.push(format!(
            "The annotation {KEPT_KUBELET} counts no more: see that the node class has its kubelet settings."
        ));
    }
    all
}

/// Names the place of what comes from a live cluster.
pub fn of_cluster() -> Origin {
    Origin::new("the cluster".as_ref())
}
