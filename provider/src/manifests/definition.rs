//! Whether a live CRD may be brought to what the provider has: who keeps it, how new it is, and what its API server still stores.

use std::cmp::Reverse;
use std::fmt;

use serde_json::{Map, Value as Json};

use super::{FIELD_MANAGER, contains};

/// The annotation of a definition that names the version of karp it is of. Karpenter's say no version of theirs: what they can do tells.
pub const VERSION_ANNOTATION: &str = "karp.sh/definitions-version";
/// The version of the definitions here.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// So many lost fields are named; the first tell what it is about.
const SHOWN: usize = 6;

/// What the configuration allows beside what is always allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    /// Take over what others keep.
    pub adopt: bool,
    /// Take away what a newer definition has.
    pub downgrade: bool,
}

/// What to do with a definition.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It has all that is wanted, and perhaps more.
    Keep,
    /// It is made, or brought up to date.
    Apply,
}

/// Who keeps a definition beside this provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A release of Helm.
    Release { namespace: String, name: String },
    /// Whoever wrote its versions last.
    Managers(Vec<String>),
}

/// Why a definition is not applied.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is deleted and not gone.
    Leaving,
    /// Objects may still be stored in versions that would go.
    Stored { versions: Vec<String> },
    /// It is newer, or others added to it.
    Newer { from: String, lost: Vec<String> },
    /// Somebody else keeps it.
    Owned(Owner),
}

/// Decides what becomes of a live definition, given the one that is wanted.
///
/// # Errors
/// The reason why it must stay as it is.
pub fn judge(live: &Json, wanted: &Json, leave: Leave) -> Result<Step, Refusal> {
    if !live["metadata"]["deletionTimestamp"].is_null() {
        return Err(Refusal::Leaving);
    }
    let owner = owner(live).filter(|_| !leave.adopt);
    if contains(&live["spec"], &wanted["spec"]) {
        // What says the same in another's name takes nothing from it; a release of Helm may still take it away from all.
        return match owner {
            Some(owner @ Owner::Release { .. }) => Err(Refusal::Owned(owner)),
            _ => Ok(Step::Keep),
        };
    }
    let stored = live["status"]["storedVersions"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let versions: Vec<String> = stored.filter(|name| version(wanted, name).is_none()).map(str::to_owned).collect();
    if !versions.is_empty() {
        return Err(Refusal::Stored { versions });
    }
    let lost = lost(live, wanted);
    if !leave.downgrade && (!lost.is_empty() || marked(live).is_some_and(is_newer)) {
        return Err(Refusal::Newer { from: origin(live), lost });
    }
    owner.map_or(Ok(Step::Apply), |owner| Err(Refusal::Owned(owner)))
}

/// Gives a definition with the mark of its version, as it is applied.
pub fn with_mark(wanted: &Json) -> Json {
    let mut marked = wanted.clone();
    marked["metadata"]["annotations"][VERSION_ANNOTATION] = VERSION.into();
    marked
}

/// Reads which version of karp a definition is of.
pub fn marked(live: &Json) -> Option<&str> {
    live["metadata"]["annotations"][VERSION_ANNOTATION].as_str()
}

/// Tells where a definition is from, as well as it says so itself: Karpenter's name no version of Karpenter, only of the tool that wrote them.
fn origin(live: &Json) -> String {
    let metadata = &live["metadata"];
    if let Some(version) = marked(live) {
        return format!("karp {version}");
    }
    if let Some(chart) = metadata["labels"]["helm.sh/chart"].as_str() {
        return format!("chart {chart}");
    }
    match metadata["annotations"]["controller-gen.kubebuilder.io/version"].as_str() {
        Some(tool) => format!("a Karpenter built with controller-gen {tool}"),
        None => "somewhere that left no version".to_owned(),
    }
}

/// Says whether a version is newer than that of the definitions here; one that cannot be read is not.
pub fn is_newer(version: &str) -> bool {
    release(version) > release(VERSION)
}

/// Reads `1.2.3`; what follows a hyphen does not count.
fn release(version: &str) -> Option<Vec<u64>> {
    version.split('-').next()?.split('.').map(|part| part.parse().ok()).collect()
}

/// Tells who else keeps a live definition: nobody where this provider applied the versions that it has.
pub fn owner(live: &Json) -> Option<Owner> {
    let managers = live["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let writes = |entry: &&Json| entry["fieldsV1"]["f:spec"].get("f:versions").is_some();
    let mut names: Vec<String> =
        managers.iter().filter(writes).map(|entry| entry["manager"].as_str().unwrap_or_default().to_owned()).collect();
    if names.iter().any(|name| name == FIELD_MANAGER) {
        return None;
    }
    let metadata = &live["metadata"];
    let annotation = |name: &str| metadata["annotations"][name].as_str().map(str::to_owned);
    if let Some(name) = annotation("meta.helm.sh/release-name") {
        let namespace = annotation("meta.helm.sh/release-namespace").unwrap_or_default();
        return Some(Owner::Release { namespace, name });
    }
    names.sort();
    names.dedup();
    Some(Owner::Managers(names))
}

fn version<'a>(definition: &'a Json, name: &str) -> Option<&'a Json> {
    definition["spec"]["versions"].as_array()?.iter().find(|version| version["name"] == name)
}

/// Names what a live definition can do and the wanted one cannot: newer versions of the API, fields, choices. An older version that
/// goes is no loss of this kind; objects stored in it are looked at elsewhere.
fn lost(live: &Json, wanted: &Json) -> Vec<String> {
    let mut lost = Vec::new();
    let names = |definition: &Json| -> Vec<String> {
        let all = definition["spec"]["versions"].as_array().into_iter().flatten();
        all.filter_map(|version| version["name"].as_str().map(str::to_owned)).collect()
    };
    let known: Vec<Maturity> = names(wanted).iter().filter_map(|name| Maturity::read(name)).collect();
    let is_newer = |name: &str| {
        let further = |theirs: Maturity| known.iter().all(|ours| theirs > *ours || theirs.major > ours.major);
        Maturity::read(name).is_some_and(further)
    };
    for name in names(live) {
        match version(wanted, &name) {
            Some(ours) => {
                let schema = |version: &Json| version["schema"]["openAPIV3Schema"].clone();
                let theirs = version(live, &name).map(schema).unwrap_or_default();
                lost_fields(&theirs, &schema(ours), "", &mut lost);
            }
            None if is_newer(&name) => lost.push(format!("version {name}")),
            None => {}
        }
    }
    lost
}

fn lost_fields(live: &Json, wanted: &Json, path: &str, lost: &mut Vec<String>) {
    let open = wanted["x-kubernetes-preserve-unknown-fields"] == true || wanted["additionalProperties"].is_object();
    let none = Map::new();
    let fields = wanted["properties"].as_object().unwrap_or(&none);
    for (name, field) in live["properties"].as_object().unwrap_or(&none) {
        let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match fields.get(name) {
            Some(wanted) => lost_fields(field, wanted, &at, lost),
            // Every object has them, whether the schema says so or not.
            None if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) => {}
            None if open => {}
            None => lost.push(at),
        }
    }
    let choices = |schema: &Json| schema["enum"].as_array().cloned();
    if let (Some(theirs), Some(ours)) = (choices(live), choices(wanted)) {
        lost.extend(theirs.iter().filter(|one| !ours.contains(one)).map(|one| format!("{path}: {one}")));
    }
    for (part, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if live[part].is_object() && wanted[part].is_object() {
            lost_fields(&live[part], &wanted[part], &format!("{path}{sign}"), lost);
        }
    }
}

/// How far a version of an API is, in the order of Kubernetes: `v2` before `v1` before `v2beta1` before `v1alpha1`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Maturity {
    stage: Reverse<u8>,
    major: u64,
    minor: u64,
}

impl Maturity {
    fn read(name: &str) -> Option<Self> {
        let rest = name.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, stage) = rest.split_at(digits);
        let major = major.parse().ok()?;
        let (stage, minor) = match stage {
            "" => (0, Some(0)),
            _ => match stage.strip_prefix("beta") {
                Some(minor) => (1, minor.parse().ok()),
                None => (2, stage.strip_prefix("alpha")?.parse().ok()),
            },
        };
        Some(Self { stage: Reverse(stage), major, minor: minor? })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release { namespace, name } => write!(f, "Helm release {namespace}/{name}"),
            Self::Managers(names) if names.is_empty() => write!(f, "nobody who left a name"),
            Self::Managers(names) => write!(f, "field manager {}", names.join(", ")),
        }
    }
}

impl Refusal {
    /// Says what is to be done about it; `names` are the definitions that it holds for.
    pub fn fix(&self, names: &[String]) -> String {
        match self {
            Self::Leaving => "Wait until it is gone: its objects go first, and one with a finalizer waits for the controller. Then run this \
                              again."
                .to_owned(),
            Self::Stored { versions } => format!(
                "Bring every object to a version that stays while their conversion still runs (`kubectl get KIND -o json | kubectl replace \
                 -f -`), then take {} out of the list with `kubectl patch crd {} --subresource=status --type=merge -p \
                 '{{\"status\":{{\"storedVersions\":[\"v1\"]}}}}'`, and run this again.",
                versions.join(", "),
                names.join(" "),
            ),
            Self::Newer { .. } => "Use the version of the provider that has them (or a newer one), or leave `karp_crds` out and let whoever \
                                   brought them keep them. With `allow_downgrade = true` they are applied all the same: what objects say in \
                                   fields that go is lost when they are next written."
                .to_owned(),
            Self::Owned(owner) => format!(
                "Set `adopt = true` to take it over from {owner}, once nothing writes it from there any more; or leave `karp_crds` out and \
                 let the definitions come from there."
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving => write!(f, "it is on its way out"),
            Self::Stored { versions } => {
                write!(
                    f,
                    "its status says that objects are stored in {}, which karp {VERSION} does not have",
                    versions.join(", ")
                )
            }
            Self::Newer { from, lost } => {
                write!(f, "the cluster has it from {from}, and this provider has that of karp {VERSION}")?;
                if lost.is_empty() {
                    return Ok(());
                }
                let more = if lost.len() > SHOWN { ", …" } else { "" };
                let shown: Vec<&str> = lost.iter().take(SHOWN).map(String::as_str).collect();
                write!(f, ", which lacks {}{more}", shown.join(", "))
            }
            Self::Owned(owner) => write!(f, "it is kept by {owner}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ADOPT: Leave = Leave { adopt: true, downgrade: false };

    fn wanted(name: &str) -> Json {
        let all = karp_domain::api::crds().into_iter();
        let found = all.map(|crd| serde_json::to_value(crd).unwrap()).find(|crd| crd["metadata"]["name"] == name);
        found.expect("a definition")
    }

    fn pools() -> Json {
        wanted("nodepools.karpenter.sh")
    }

    fn written_by(mut live: Json, manager: &str) -> Json {
        live["status"] = json!({ "storedVersions": ["v1"] });
        live["metadata"]["managedFields"] = json!([{ "manager": manager, "fieldsV1": { "f:spec": { "f:versions": {} } } },
                   { "manager": "kube-apiserver", "subresource": "status", "fieldsV1": { "f:status": {} } }]);
        live
    }

    /// A definition of the past: its own, with a field less.
    fn older(manager: &str) -> Json {
        let mut live = written_by(pools(), manager);
        let spec = live.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").unwrap();
        spec.as_object_mut().unwrap().remove("weight").expect("a weight");
        live
    }

    /// A definition of the future: a field and a choice more.
    fn newer(manager: &str) -> Json {
        let mut live = older(manager);
        let spec = live.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").unwrap();
        spec["template"]["properties"]["spec"]["properties"]["mood"] = json!({ "type": "string" });
        let policy = &mut spec["disruption"]["properties"]["consolidationPolicy"]["enum"];
        policy.as_array_mut().expect("choices").push(json!("Never"));
        live
    }

    #[test]
    fn its_own_definition_is_brought_up_to_date_and_one_like_it_is_kept() {
        assert_eq!(judge(&older(FIELD_MANAGER), &pools(), Leave::default()), Ok(Step::Apply));
        for manager in [FIELD_MANAGER, "kubectl"] {
            assert_eq!(judge(&written_by(pools(), manager), &pools(), Leave::default()), Ok(Step::Keep), "{manager}");
        }
    }

    #[test]
    fn what_others_keep_is_taken_over_when_asked_and_their_name_told() {
        let refused = judge(&older("kubectl-client-side-apply"), &pools(), Leave::default()).unwrap_err();
        assert_eq!(refused.to_string(), "it is kept by field manager kubectl-client-side-apply");
        assert!(refused.fix(&[]).contains("adopt = true"), "{}", refused.fix(&[]));
        assert_eq!(judge(&older("kubectl-client-side-apply"), &pools(), ADOPT), Ok(Step::Apply));
    }

    #[test]
    fn a_release_of_helm_is_asked_for_even_where_nothing_differs() {
        let mut live = written_by(pools(), "helm");
        live["metadata"]["annotations"] =
            json!({ "meta.helm.sh/release-name": "karpenter-crd", "meta.helm.sh/release-namespace": "kube-system" });
        let refused = judge(&live, &pools(), Leave::default()).unwrap_err();
        assert_eq!(refused.to_string(), "it is kept by Helm release kube-system/karpenter-crd");
        assert_eq!(judge(&live, &pools(), ADOPT), Ok(Step::Keep));
        // Its annotations stay when it is taken over.
        live["metadata"]["managedFields"][0]["manager"] = json!(FIELD_MANAGER);
        assert_eq!(judge(&live, &pools(), Leave::default()), Ok(Step::Keep));
    }

    #[test]
    fn a_definition_that_can_do_more_is_not_taken_back() {
        for manager in [FIELD_MANAGER, "helm"] {
            let refused = judge(&newer(manager), &pools(), ADOPT).unwrap_err();
            let told = refused.to_string();
            let lost = "lacks spec.disruption.consolidationPolicy: \"Never\", spec.template.spec.mood";
            assert!(told.contains(lost) && told.contains(VERSION), "{told}");
        }
        let asked = Leave { adopt: true, downgrade: true };
        assert_eq!(judge(&newer("helm"), &pools(), asked), Ok(Step::Apply));
        // What only adds to ours is left as it is: nothing is missing.
        let mut more = written_by(pools(), "helm");
        more["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["mood"] = json!({ "type": "string" });
        assert_eq!(judge(&more, &pools(), Leave::default()), Ok(Step::Keep));
    }

    #[test]
    fn the_mark_of_a_newer_karp_is_heeded() {
        let mut live = older(FIELD_MANAGER);
        for (version, is_refused) in
            [("99.0.0", true), ("99.0.0-rc.1", true), (VERSION, false), ("0.0.1", false), ("x", false)]
        {
            live["metadata"]["annotations"] = json!({ VERSION_ANNOTATION: version });
            let judged = judge(&live, &pools(), Leave::default());
            let newer = Refusal::Newer { from: format!("karp {version}"), lost: Vec::new() };
            assert_eq!(judged, if is_refused { Err(newer) } else { Ok(Step::Apply) }, "{version}");
        }
        assert_eq!(marked(&with_mark(&pools())), Some(VERSION));
    }

    #[test]
    fn versions_go_when_they_are_older_and_nothing_is_stored_in_them() {
        let with = |name: &str, stored: Json| {
            let mut live = older("helm");
            live["metadata"]["annotations"] = json!({ "controller-gen.kubebuilder.io/version": "v0.99.0" });
            let mut version = live["spec"]["versions"][0].clone();
            version["name"] = json!(name);
            live["spec"]["versions"].as_array_mut().unwrap().push(version);
            live["status"]["storedVersions"] = stored;
            judge(&live, &pools(), ADOPT)
        };
        assert_eq!(with("v1beta1", json!(["v1"])), Ok(Step::Apply));
        let stored = Refusal::Stored { versions: vec!["v1beta1".to_owned()] };
        assert!(stored.fix(&["x".to_owned()]).contains("storedVersions"));
        assert_eq!(with("v1beta1", json!(["v1beta1", "v1"])), Err(stored));
        assert_eq!(with("v1alpha5", json!(["v1"])), Ok(Step::Apply));
        for name in ["v2", "v2alpha1"] {
            let refused = with(name, json!(["v1"])).unwrap_err().to_string();
            assert!(
                refused.contains("controller-gen v0.99.0") && refused.ends_with(&format!("lacks version {name}")),
                "{refused}"
            );
        }
    }

    #[test]
    fn versions_of_an_api_are_ordered_as_kubernetes_does() {
        let names = ["v1alpha1", "v2alpha1", "v1beta1", "v1beta2", "v1", "v2", "v10"];
        let read: Vec<Option<Maturity>> = names.iter().map(|name| Maturity::read(name)).collect();
        assert!(read.iter().all(Option::is_some) && read.is_sorted(), "{read:?}");
        assert_eq!(Maturity::read("latest"), None);
    }

    #[test]
    fn one_that_is_deleted_is_left_to_go() {
        let mut live = older(FIELD_MANAGER);
        live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(judge(&live, &pools(), Leave::default()), Err(Refusal::Leaving));
    }
}
