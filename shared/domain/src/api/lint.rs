//! What the API server takes and nobody can have meant: values of which nothing can come, and values that are passed over.
//!
//! Paths are those of `validate`. An object need not be whole: what is not there yet is not spoken of.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{kubelet_settings, label_syntax, labels};
use crate::quantity::Quantity;
use crate::requirement::hint;

/// One thing that somebody should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, as `spec.template.spec.requirements[0].values`.
    pub path: String,
    pub weight: Weight,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl Finding {
    /// The place, and what is wrong with it, as a sentence among others.
    #[must_use]
    pub fn sentence(&self) -> String {
        let stop = if self.message.ends_with('?') { "" } else { "." };
        format!("{}: {}{stop}", self.path, self.message)
    }
}

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nothing can come of it: the controller, EC2 or the kubelet refuses it, or nothing in the world has such a value.
    Futile,
    /// It works, in another way than it reads.
    Doubtful,
}

/// Says what is wrong with the name that a manifest gives its object. Where Terraform has the object, the schema says so.
#[must_use]
pub fn name(object: &Value) -> Option<Finding> {
    unfilled("metadata.name", &object["metadata"]["name"], Weight::Futile)
}

/// Says what a NodePool has that nobody can have meant.
#[must_use]
pub fn node_pool(pool: &Value) -> Vec<Finding> {
    let (spec, template) = (&pool["spec"], &pool["spec"]["template"]);
    let mut found = taints(&template["spec"]);
    let group = template["spec"]["nodeClassRef"]["group"].as_str();
    // What the nodes of other clouds can be is not known here.
    let cloud = if group.is_none_or(labels::is_ours) { Cloud::Ours } else { Cloud::Foreign };
    found.extend(requirements(&template["spec"]["requirements"], "spec.template.spec.requirements", cloud));
    found.extend(label_keys(&template["metadata"]["labels"]));
    if cloud == Cloud::Ours {
        found.extend(node_labels(&template["metadata"]["labels"]));
    }
    found.extend(limits(&spec["limits"]));
    let class = &template["spec"]["nodeClassRef"]["name"];
    found.extend(unfilled("spec.template.spec.nodeClassRef.name", class, Weight::Futile));
    found
}

/// Says what a NodeOverlay has that nobody can have meant.
#[must_use]
pub fn node_overlay(overlay: &Value) -> Vec<Finding> {
    requirements(&overlay["spec"]["requirements"], "spec.requirements", Cloud::Ours)
}

/// Says what an EC2NodeClass has that nobody can have meant.
#[must_use]
pub fn node_class(class: &Value) -> Vec<Finding> {
    let spec = &class["spec"];
    let named = |field: &str, check: fn(&str) -> Option<Finding>| {
        let given = &spec[field];
        unfilled(&format!("spec.{field}"), given, Weight::Futile).or_else(|| check(given.as_str()?))
    };
    named("role", role)
        .into_iter()
        .chain(named("instanceProfile", instance_profile))
        .chain(entries(&spec["kubelet"]).filter_map(|(name, _)| kubelet_setting(name)))
        .chain(unfilled_tags("spec.tags", &spec["tags"]))
        .chain(SELECTORS.iter().flat_map(|field| unfilled_terms(&format!("spec.{field}"), &spec[*field])))
        .collect()
}

/// The fields of an EC2NodeClass that choose things of EC2 by tags and names.
const SELECTORS: [&str; 4] =
    ["subnetSelectorTerms", "securityGroupSelectorTerms", "amiSelectorTerms", "capacityReservationSelectorTerms"];

/// Whose nodes requirements speak of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cloud {
    Ours,
    Foreign,
}

impl Finding {
    fn futile(path: String, message: String) -> Self {
        Self { path, weight: Weight::Futile, message }
    }

    fn doubtful(path: String, message: String) -> Self {
        Self { path, weight: Weight::Doubtful, message }
    }
}

fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

fn entries(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
    map.as_object().into_iter().flatten()
}

/// Finds what articles and scripts leave for a shell or their reader to fill in: `${CLUSTER_NAME}`, or `<CLUSTER_NAME>` in capitals.
fn placeholder(text: &str) -> Option<&str> {
    let is_capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_- ".contains(c);
    let within = |open: &'static str, close: char| {
        text.match_indices(open).filter_map(move |(at, _)| {
            let name = text[at + open.len()..].split_once(close)?.0;
            let whole = &text[at..at + open.len() + name.len() + close.len_utf8()];
            Some((whole, name)).filter(|(_, name)| !name.is_empty())
        })
    };
    let of_shell = within("${", '}').next();
    let is_capitals = |name: &str| name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(is_capital);
    let of_reader = || within("<", '>').find(|(_, name)| is_capitals(name));
    of_shell.or_else(of_reader).map(|(whole, _)| whole)
}

fn unfilled(path: &str, value: &Value, weight: Weight) -> Option<Finding> {
    let left = placeholder(value.as_str()?)?;
    let message = format!("{left} is a placeholder that was not filled in: write what it stands for");
    Some(Finding { path: path.to_owned(), weight, message })
}

/// Tags may have any value, so that it could be meant.
fn unfilled_tags(path: &str, tags: &Value) -> Vec<Finding> {
    let of_tag = |(key, value): (&String, &Value)| unfilled(&format!("{path}[{key}]"), value, Weight::Doubtful);
    entries(tags).filter_map(of_tag).collect()
}

fn unfilled_terms(path: &str, terms: &Value) -> Vec<Finding> {
    let of_term = |(at, term): (usize, &Value)| {
        let path = format!("{path}[{at}]");
        let name = unfilled(&format!("{path}.name"), &term["name"], Weight::Doubtful);
        unfilled_tags(&format!("{path}.tags"), &term["tags"]).into_iter().chain(name)
    };
    items(terms).flat_map(of_term).collect()
}

/// A node has each pair of key and effect once: with two the API server takes no node from the kubelet, and Karpenter no pool.
fn taints(template: &Value) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for list in ["taints", "startupTaints"] {
        for (at, taint) in items(&template[list]) {
            let (Some(key), Some(effect)) = (taint["key"].as_str(), taint["effect"].as_str()) else { continue };
            if !seen.insert((key, effect)) {
                let message = format!(
                    "the taint {key:?} with the effect {effect} is given twice, and a node can have it once, among taints and startup \
                     taints together: take one away, or change its effect"
                );
                found.push(Finding::futile(format!("spec.template.spec.{list}[{at}]"), message));
            }
        }
    }
    found
}

fn requirements(list: &Value, path: &str, cloud: Cloud) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, requirement) in items(list) {
        let (Some(key), Some(operator)) = (requirement["key"].as_str(), requirement["operator"].as_str()) else {
            continue;
        };
        let path = format!("{path}[{at}].values");
        let values: Vec<&str> = items(&requirement["values"]).filter_map(|(_, value)| value.as_str()).collect();
        match operator {
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let other = if operator == "Exists" { "In to demand one of them" } else { "NotIn to forbid them" };
                let message = format!("the operator {operator} passes values over: leave them out, or write {other}");
                found.push(Finding::doubtful(path, message));
            }
            "In" | "NotIn" if values.iter().any(|value| label_syntax::value_problem(value).is_some()) => {
                let problems = values.iter().filter_map(|value| label_syntax::value_problem(value));
                found.extend(problems.map(|problem| Finding::futile(path.clone(), problem)));
            }
            "In" | "NotIn" if cloud == Cloud::Ours => {
                let least = requirement["minValues"].as_u64().unwrap_or(1);
                found.extend(strange(key, &values).map(|(message, left)| {
                    let enough = operator == "NotIn" || left as u64 >= least;
                    if enough { Finding::doubtful(path, message) } else { Finding::futile(path, message) }
                }));
            }
            _ => {}
        }
    }
    found
}

/// Nodes get the pool's labels, and the API server takes no claim with one that it cannot read.
fn label_keys(template: &Value) -> Vec<Finding> {
    let problems = entries(template).filter_map(|(key, _)| Some((key, label_syntax::key_problem(key)?)));
    problems.map(|(key, problem)| Finding::futile(format!("spec.template.metadata.labels[{key}]"), problem)).collect()
}

fn node_labels(template: &Value) -> Vec<Finding> {
    let finding = |(key, value): (&String, &Value)| {
        let (message, _) = strange(key, &[value.as_str()?])?;
        Some(Finding::futile(format!("spec.template.metadata.labels[{key}]"), message))
    };
    entries(template).filter_map(finding).collect()
}

/// Says which of the values a label never has, and how many are left without those.
fn strange(key: &str, values: &[&str]) -> Option<(String, usize)> {
    let label = hint::closed(&labels::normalise(key))?;
    let never: Vec<&str> = values.iter().copied().filter(|value| !label.values.contains(value)).collect();
    if never.is_empty() {
        return None;
    }
    let quoted: Vec<String> = never.iter().map(|value| format!("{value:?}")).collect();
    let meant: BTreeSet<&str> = never.iter().filter_map(|value| label.meant(value)).collect();
    let meant = match meant.into_iter().collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!("; did you mean {some}?"),
    };
    let (quoted, all) = (quoted.join(" or "), label.values.join(", "));
    Some((format!("{key} is never {quoted}, only one of {all}{meant}"), values.len() - never.len()))
}

fn limits(limits: &Value) -> Vec<Finding> {
    let negative = |amount: &Value| match amount {
        Value::String(text) => text.parse::<Quantity>().is_ok_and(Quantity::is_negative),
        other => other.as_i64().is_some_and(i64::is_negative),
    };
    let finding = |name: &String| {
        let message =
            "a limit below zero lets the pool make no node: write 0 where that is meant, an amount, or leave it out";
        Finding::futile(format!("spec.limits[{name}]"), message.to_owned())
    };
    entries(limits).filter(|(_, amount)| negative(amount)).map(|(name, _)| finding(name)).collect()
}

/// A kubelet passes over what it does not know.
fn kubelet_setting(name: &str) -> Option<Finding> {
    if kubelet_settings::is_known(name) {
        return None;
    }
    let path = format!("spec.kubelet.{name}");
    Some(match kubelet_settings::meant(name) {
        Some(meant) => Finding::futile(path, format!("the kubelet has no setting {name:?}; did you mean {meant}?")),
        None => Finding::doubtful(
            path,
            format!(
                "the kubelet of Kubernetes 1.36 has no setting {name:?}, and a kubelet passes over what it does not know"
            ),
        ),
    })
}

/// What a controller takes of a role is what comes after the last slash, so that an ARN does, too.
fn role(role: &str) -> Option<Finding> {
    let name = role.rsplit('/').next().unwrap_or(role);
    let path = || "spec.role".to_owned();
    if !is_iam_name(name, 64) {
        let message =
            format!("{role:?} is not the name of a role: write a name such as KarpNodeRole-prod, without ARN and path");
        return Some(Finding::futile(path(), message));
    }
    role.starts_with("arn:").then(|| {
        Finding::doubtful(path(), format!("an ARN is given where a name is wanted; its end is taken: write {name:?}"))
    })
}

/// EC2 takes the name of an instance profile as it is written.
fn instance_profile(profile: &str) -> Option<Finding> {
    let name = profile.rsplit('/').next().unwrap_or(profile);
    (!is_iam_name(profile, 128)).then(|| {
        let fix = if is_iam_name(name, 128) { format!("{name:?}") } else { "a name such as nodes".to_owned() };
        let message =
            format!("EC2 knows instance profiles by their names, without ARN and path: write {fix}, not {profile:?}");
        Finding::futile("spec.instanceProfile".to_owned(), message)
    })
}

/// Says whether IAM can have something of that name. An empty one is for the API's own rules to refuse.
fn is_iam_name(name: &str, longest: usize) -> bool {
    name.len() <= longest && name.chars().all(|c| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c))
}
