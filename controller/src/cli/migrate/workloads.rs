//! Workloads that use keys of older APIs, and the patches that give them today's.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::api::labels;
use serde_json::{Map, Value as Json, json};

use crate::files::Manifest;

/// Labels of nodes that are called otherwise today, besides those that Kubernetes itself renamed.
const LABELS: [(&str, &str); 2] = [
    ("karpenter.sh/provisioner-name", labels::NODE_POOL),
    ("karpenter.k8s.aws/instance-accelerator-manufactuer", labels::INSTANCE_ACCELERATOR_MANUFACTURER),
];
/// Annotations that are called otherwise today.
const ANNOTATIONS: [&str; 2] = ["karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate"];
/// The taint of nodes on their way out, before v1.
const OLD_DISRUPTION: &str = "karpenter.sh/disruption";
/// Where the template of a workload's pods stands.
const TEMPLATES: [&str; 3] = ["/spec/template", "/spec/jobTemplate/spec/template", "/template"];
/// Terms of affinity, in the order in which they are told.
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Remedy {
    /// A JSON merge patch of the object.
    Patch(Json),
    /// The object cannot be changed: what is to be done in its place.
    Otherwise(&'static str),
}

/// A workload that uses old keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    /// What it uses, with what to use in its place.
    pub uses: Vec<String>,
    pub remedy: Remedy,
}

impl Finding {
    /// Writes the command that puts things right; nothing where none can.
    pub fn command(&self) -> Option<String> {
        let Remedy::Patch(patch) = &self.remedy else { return None };
        let namespace =
            self.namespace.as_ref().map_or_else(String::new, |namespace| format!(" -n {}", shell(namespace)));
        let (kind, name) = (shell(&self.kind.to_ascii_lowercase()), shell(&self.name));
        Some(format!("kubectl patch {kind} {name}{namespace} --type=merge -p {}", shell(&patch.to_string())))
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
        write!(f, "{} {place}{}", self.kind, self.name)
    }
}

/// Finds the workloads that use old keys. What another object made is told as that other object's.
pub fn find(manifests: &[Manifest]) -> Vec<Finding> {
    let read: BTreeSet<_> = manifests.iter().map(|manifest| identity(&manifest.kind, &manifest.object)).collect();
    let mut all: BTreeMap<(String, Option<String>, String), Finding> = BTreeMap::new();
    for manifest in manifests {
        let Some((uses, remedy)) = look(manifest) else { continue };
        let object = &manifest.object;
        let (kind, namespace, name) = identity(&manifest.kind, object);
        let owner = object["metadata"]["ownerReferences"].as_array().and_then(|owners| owners.first());
        let finding = match owner.and_then(|owner| Some((owner["kind"].as_str()?, owner["name"].as_str()?))) {
            Some((kind, name)) if manifest.kind != "Node" => {
                let identity = (kind.to_owned(), namespace.clone(), name.to_owned());
                if read.contains(&identity) {
                    continue;
                }
                let remedy = Remedy::Otherwise("it was not read: change it, or what made it, where it is written");
                Finding { kind: kind.to_owned(), namespace, name: name.to_owned(), uses, remedy }
            }
            _ => Finding { kind, namespace, name, uses, remedy },
        };
        all.entry((finding.kind.clone(), finding.namespace.clone(), finding.name.clone())).or_insert(finding);
    }
    all.into_values().collect()
}

fn identity(kind: &str, object: &Json) -> (String, Option<String>, String) {
    let text = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    (kind.to_owned(), text("namespace"), text("name").unwrap_or_default())
}

/// Looks one object through.
fn look(manifest: &Manifest) -> Option<(Vec<String>, Remedy)> {
    let object = &manifest.object;
    let mut found = Found::default();
    match manifest.kind.as_str() {
        "Node" => found.annotations(object),
        "Pod" => {
            found.annotations(object);
            let by_annotation = found.patch.clone();
            found.pod(object);
            let fixed = found.patch != by_annotation;
            let otherwise =
                Remedy::Otherwise("a Pod that runs cannot be moved so: delete it, and create it with the new keys");
            return found.end(|patch| if fixed { otherwise } else { Remedy::Patch(patch) });
        }
        kind => {
            let template = TEMPLATES.iter().find(|path| object.pointer(path).is_some_and(is_template))?;
            found.annotations(object.pointer(template)?);
            found.pod(object.pointer(template)?);
            if kind == "Job" {
                let otherwise = "a Job's template cannot be changed: delete it, and create it with the new keys if it still has work";
                return found.end(|_| Remedy::Otherwise(otherwise));
            }
            let steps: Vec<&str> = template.split('/').skip(1).collect();
            let within = |patch| steps.iter().rev().fold(patch, |inner, step| json!({ *step: inner }));
            return found.end(|patch| Remedy::Patch(within(patch)));
        }
    }
    found.end(Remedy::Patch)
}

fn is_template(value: &Json) -> bool {
    value["spec"]["containers"].is_array()
}

/// What an object uses, and what puts it right.
#[derive(Default)]
struct Found {
    uses: Vec<String>,
    patch: Json,
}

impl Found {
    fn end(self, remedy: impl FnOnce(Json) -> Remedy) -> Option<(Vec<String>, Remedy)> {
        (!self.uses.is_empty()).then(|| (self.uses, remedy(self.patch)))
    }

    fn told(&mut self, at: &str, old: &str, new: &str) {
        let told = format!("{at} {old} is {new} now");
        if !self.uses.contains(&told) {
            self.uses.push(told);
        }
    }

    /// Puts a value into the patch.
    fn set(&mut self, path: &[&str], value: Json) {
        let mut at = &mut self.patch;
        for step in path {
            if !at.is_object() {
                *at = Json::Object(Map::new());
            }
            at = &mut at[*step];
        }
        *at = value;
    }

    fn annotations(&mut self, object: &Json) {
        let there = &object["metadata"]["annotations"];
        for old in ANNOTATIONS {
            let Some(value) = there[old].as_str() else { continue };
            self.set(&["metadata", "annotations", old], Json::Null);
            if value == "true" && there[labels::DO_NOT_DISRUPT].is_null() {
                self.set(&["metadata", "annotations", labels::DO_NOT_DISRUPT], json!("true"));
            }
            self.told("annotation", old, labels::DO_NOT_DISRUPT);
        }
    }

    fn pod(&mut self, object: &Json) {
        let spec = &object["spec"];
        for (old, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
            let Some(new) = successor(old) else { continue };
            self.set(&["spec", "nodeSelector", old], Json::Null);
            if spec["nodeSelector"][&new].is_null() {
                self.set(&["spec", "nodeSelector", &new], value.clone());
            }
            self.told("nodeSelector", old, &new);
        }
        self.node_affinity(&spec["affinity"]["nodeAffinity"]);
        for kind in ["podAffinity", "podAntiAffinity"] {
            for term in [REQUIRED, PREFERRED] {
                let at = ["spec", "affinity", kind, term];
                let topology = if term == REQUIRED { "/topologyKey" } else { "/podAffinityTerm/topologyKey" };
                self.list(&spec["affinity"][kind][term], &at, |item, renamed| {
                    rename(item.pointer_mut(topology), renamed);
                });
            }
        }
        let spread = &spec["topologySpreadConstraints"];
        self.list(spread, &["spec", "topologySpreadConstraints"], |item, renamed| {
            rename(item.get_mut("topologyKey"), renamed);
        });
        self.list(&spec["tolerations"], &["spec", "tolerations"], |item, renamed| {
            if item["key"] == OLD_DISRUPTION {
                item["key"] = json!(labels::DISRUPTED);
                // today's taint has no value
                item["operator"] = json!("Exists");
                item.as_object_mut().map(|item| item.remove("value"));
                renamed.push((OLD_DISRUPTION.to_owned(), labels::DISRUPTED.to_owned()));
            }
        });
    }

    fn node_affinity(&mut self, affinity: &Json) {
        fn expressions(term: Option<&mut Json>, renamed: &mut Vec<(String, String)>) {
            let list = term.and_then(|term| term.get_mut("matchExpressions")).and_then(Json::as_array_mut);
            list.into_iter().flatten().for_each(|item| rename(item.get_mut("key"), renamed));
        }
        let at = ["spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"];
        let required = &affinity[REQUIRED]["nodeSelectorTerms"];
        self.list(required, &at, |term, renamed| expressions(Some(term), renamed));
        self.list(&affinity[PREFERRED], &["spec", "affinity", "nodeAffinity", PREFERRED], |term, renamed| {
            expressions(term.get_mut("preference"), renamed);
        });
    }

    /// Renames in a list. A merge patch replaces lists whole.
    fn list(&mut self, list: &Json, at: &[&str], each: impl Fn(&mut Json, &mut Vec<(String, String)>)) {
        let mut items = list.clone();
        let mut renamed = Vec::new();
        items.as_array_mut().into_iter().flatten().for_each(|item| each(item, &mut renamed));
        if renamed.is_empty() {
            return;
        }
        self.set(at, items);
        for (old, new) in renamed {
            self.told(at.iter().find(|step| **step != "spec" && **step != "affinity").unwrap_or(&"spec"), &old, &new);
        }
    }
}

fn rename(key: Option<&mut Json>, renamed: &mut Vec<(String, String)>) {
    let Some(key) = key else { return };
    if let Some((old, new)) = key.as_str().and_then(|old| Some((old.to_owned(), successor(old)?))) {
        *key = json!(new);
        renamed.push((old, new));
    }
}

/// Says how a label of nodes is called today; nothing for one that keeps its name.
fn successor(key: &str) -> Option<String> {
    if let Some((_, new)) = LABELS.iter().find(|(old, _)| *old == key) {
        return Some((*new).to_owned());
    }
    let kubernetes = key.starts_with("beta.kubernetes.io/") || key.starts_with("failure-domain.beta.kubernetes.io/");
    let today = labels::normalise(key);
    (kubernetes && today != key).then(|| today.into_owned())
}

/// Quotes a word for a shell.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::of_cluster;
    use super::*;

    fn manifest(kind: &str, mut object: Json) -> Manifest {
        object["metadata"]["name"] = json!("web");
        object["metadata"]["namespace"] = json!("shop");
        Manifest { origin: of_cluster(), version: "apps/v1".to_owned(), kind: kind.to_owned(), object }
    }

    fn template(metadata: &Json, mut spec: Json) -> Json {
        spec["containers"] = json!([{ "name": "c", "env": [{ "name": "TOKEN", "value": "hunter2" }] }]);
        json!({ "metadata": metadata, "spec": spec })
    }

    fn one(kind: &str, object: Json) -> Finding {
        let found = find(&[manifest(kind, object)]);
        let [finding] = &*found else { panic!("{found:?}") };
        assert!(!format!("{finding:?}").contains("hunter2"));
        finding.clone()
    }

    fn patch(kind: &str, object: Json) -> Json {
        match one(kind, object).remedy {
            Remedy::Patch(patch) => patch,
            Remedy::Otherwise(why) => panic!("{why}"),
        }
    }

    #[test]
    fn selectors_and_annotations_get_their_new_keys() {
        let metadata = json!({ "annotations": { "karpenter.sh/do-not-evict": "true", "other": "1" } });
        let spec = json!({ "nodeSelector": { "karpenter.sh/provisioner-name": "it's", "disk": "ssd" } });
        let finding = one("Deployment", json!({ "spec": { "template": template(&metadata, spec.clone()) } }));
        assert_eq!(
            finding.command().unwrap_or_default(),
            "kubectl patch deployment web -n shop --type=merge -p '{\"spec\":{\"template\":{\"metadata\":{\"annotations\":\
             {\"karpenter.sh/do-not-disrupt\":\"true\",\"karpenter.sh/do-not-evict\":null}},\"spec\":{\"nodeSelector\":\
             {\"karpenter.sh/nodepool\":\"it'\\''s\",\"karpenter.sh/provisioner-name\":null}}}}}'"
        );
        let cron = json!({ "spec": { "jobTemplate": { "spec": { "template": template(&json!({}), spec) } } } });
        assert!(patch("CronJob", cron).pointer("/spec/jobTemplate/spec/template/spec/nodeSelector").is_some());
    }

    #[test]
    fn lists_are_replaced_whole() {
        let term = |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": ["a"] }] });
        let terms = |key: &str| json!([term("disk"), term(key)]);
        let affinity = |key: &str| {
            json!({ "nodeAffinity": {
                REQUIRED: { "nodeSelectorTerms": terms(key) },
                PREFERRED: [{ "weight": 1, "preference": term(key) }],
            } })
        };
        let spread = |key: &str| json!([{ "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule" }]);
        let (old, new) = ("karpenter.sh/provisioner-name", "karpenter.sh/nodepool");
        let spec = json!({ "affinity": affinity(old), "topologySpreadConstraints": spread("failure-domain.beta.kubernetes.io/zone"),
            "tolerations": [{ "key": "karpenter.sh/disruption", "operator": "Equal", "value": "disrupting", "effect": "NoSchedule" }] });
        let expected = json!({ "affinity": affinity(new), "topologySpreadConstraints": spread("topology.kubernetes.io/zone"),
            "tolerations": [{ "key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "NoSchedule" }] });
        let patch = patch("StatefulSet", json!({ "spec": { "template": template(&json!({}), spec) } }));
        assert_eq!(patch["spec"]["template"]["spec"], expected);
    }

    #[test]
    fn what_another_object_made_is_told_once() {
        let spec = json!({ "nodeSelector": { "karpenter.sh/provisioner-name": "a" } });
        let mut pod = template(&json!({}), spec.clone());
        pod["metadata"]["ownerReferences"] = json!([{ "kind": "Rollout", "name": "canary" }]);
        let found = one("Pod", pod.clone());
        assert_eq!((found.to_string().as_str(), found.command()), ("Rollout shop/canary", None));
        pod["metadata"]["ownerReferences"] = json!([{ "kind": "Deployment", "name": "web" }]);
        let deployment = json!({ "spec": { "template": template(&json!({}), spec.clone()) } });
        assert_eq!(find(&[manifest("Pod", pod), manifest("Deployment", deployment)]).len(), 1);
        let found = one("Pod", template(&json!({}), spec.clone()));
        assert!(matches!(found.remedy, Remedy::Otherwise(why) if why.contains("delete it")));
        let kept = template(&json!({ "annotations": { "karpenter.sh/do-not-evict": "true" } }), json!({}));
        assert_eq!(patch("Pod", kept)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"], "true");
        let job = json!({ "spec": { "template": template(&json!({}), spec) } });
        assert!(one("Job", job).command().is_none());
    }

    #[test]
    fn todays_keys_are_no_finding() {
        let spec = json!({ "nodeSelector": { "karpenter.sh/nodepool": "a", "topology.ebs.csi.aws.com/zone": "z" } });
        assert_eq!(find(&[manifest("Deployment", json!({ "spec": { "template": template(&json!({}), spec) } }))]), []);
    }
}
