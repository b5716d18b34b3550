//! The words of a plan's warning: name and counts in the summary, a few lines below.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::catalogue::Price;
use karp_domain::lifecycle::Drift;
use tfplugin::Diagnostic;

use super::selection::Finds;
use super::{Certainty, ClassPreview, Ending, Impact, Nodes, Offer, Preview, Replaced};

/// So many names of one kind are shown.
const SHOWN: usize = 5;
const NO_NODE: &str = "No node can be made, so that one that drifts stays unless its pods fit on others";
const PRICES: &str = "Prices are karp's estimates for us-east-1, without NodeOverlays.";
/// On what it depends whether a node drifts that perhaps does: by a selector, and by a change of the class that may be one back to what it was.
const BY_SELECTORS: &str =
    "They drift where the changed selectors find something else than the nodes have, which the controller finds out.";
const BY_HASH: &str = "Those by NodeClassDrift drifted before this change: they stay where they were made of the class as it will be, which the \
    controller finds out.";
/// What the controller does only with its feature gate, which nobody sees at plan.
const GATED: &str = "only while the controller's feature gate StaticCapacity is on";
/// Attributes by which nodes are consolidated.
const CONSOLIDATION: [&str; 2] = ["disruption.consolidate_after", "disruption.consolidation_policy"];

impl Preview {
    /// Writes the warning of a plan that makes or changes a pool.
    pub fn warning(&self, pool: &str) -> Diagnostic {
        let fate = self.impact.as_ref().map(|impact| format!(", {}", fate(impact, self.after.types > 0)));
        let summary =
            format!("NodePool {pool:?}: {}{}", types(self.before.as_ref(), &self.after), fate.unwrap_or_default());
        let mut lines = vec![format!("It may launch {}. {PRICES}", launches(self.before.as_ref(), &self.after))];
        if self.is_static {
            lines.push(format!("It is static: its nodes are made, renewed and given up {GATED}."));
        }
        if self.after.types == 0 {
            lines.push(format!("{NO_NODE}: loosen `template.requirements`."));
        }
        if let Some(impact) = &self.impact {
            lines.extend(of_nodes(impact, self.after.types > 0));
            if impact.changed.iter().any(|field| CONSOLIDATION.contains(&field.as_str())) {
                lines.push("Which nodes will be consolidated by the new rules is not foreseen here.".to_owned());
            }
        }
        lines.extend(self.unseen.as_ref().map(|why| format!("Its nodes could not be looked at: {why}")));
        Diagnostic::warning(summary, lines.join("\n"))
    }
}

/// Writes the warning of a plan that changes a class.
pub fn class_warning(class: &str, looked: Result<ClassPreview, String>) -> Diagnostic {
    let seen = match looked {
        Ok(seen) => seen,
        Err(why) => {
            return Diagnostic::warning(format!("EC2NodeClass {class:?}: its nodes could not be looked at"), why);
        }
    };
    let is_ready = seen.finds.iter().all(|finds| !finds.after.is_empty());
    let (before, can_launch) = (seen.before.as_ref(), seen.after.types > 0 && is_ready);
    let types = before.map(|before| format!("{}, ", types(Some(before), &seen.after)));
    let can_launch_any = can_launch || (before.is_none() && is_ready);
    let fate = fate(&seen.impact, can_launch_any);
    let summary = format!("EC2NodeClass {class:?}: {}{fate}", types.unwrap_or_default());
    let mut lines = vec![match before {
        Some(before) => format!("Its pools may launch {}. {PRICES}", launches(Some(before), &seen.after)),
        None => "No NodePool uses it.".to_owned(),
    }];
    if before.is_some() && seen.after.types == 0 {
        lines.push(format!("{NO_NODE}: no type has all that the class and its pools ask for."));
    }
    lines.extend(seen.finds.iter().map(found));
    lines.extend(of_nodes(&seen.impact, can_launch_any));
    if !(seen.statics.is_empty() || seen.impact.drifting.is_empty()) {
        let pools = some(seen.statics.iter().map(String::as_str), ", ");
        lines.push(format!("Nodes of static pools ({pools}) are renewed {GATED}."));
    }
    Diagnostic::warning(summary, lines.join("\n"))
}

impl Replaced {
    /// Writes the warning of a plan that destroys an object to make another, which may launch as much as `offer`, where it is a pool's.
    pub fn warning(&self, heir: &str, offer: Option<&Offer>) -> Diagnostic {
        let (kind, name) = (self.kind, &self.name);
        let nodes = self.nodes.as_ref().and_then(|nodes| nodes.as_ref().ok());
        let with = match nodes.map(|nodes| nodes.count) {
            None => String::new(),
            Some(0) => ", which has no nodes".to_owned(),
            Some(count) => format!(" and its {}", plural(count, "node")),
        };
        let types = offer.map_or_else(String::new, |offer| format!("{}, ", types(None, offer)));
        let summary = format!("{kind} {heir:?}: {types}in place of {kind} {name:?}{with}");
        let mut lines: Vec<String> =
            offer.map(|offer| format!("It may launch {}. {PRICES}", told(offer))).into_iter().collect();
        let because = some(self.because.iter().map(String::as_str), ", ");
        lines.push(format!("A change of {because} takes another {kind}: {name:?} is destroyed."));
        let may_have_pods = nodes.is_none_or(|nodes| nodes.count > 0);
        if may_have_pods {
            lines.push(self.ending.told().to_owned());
        }
        lines.extend(nodes.and_then(Nodes::pace));
        match nodes.map(|nodes| &nodes.held) {
            Some(Ok(held)) if !held.is_empty() => lines.push(format!("What holds pods on them now: {held}.")),
            Some(Err(why)) => lines.push(format!("What holds pods on them could not be looked at: {why}.")),
            Some(Ok(_)) | None => {}
        }
        if *name != heir && self.ending != Ending::AwaitedBy && may_have_pods {
            lines.push("With `create_before_destroy` the new pool is there for their pods when they leave.".to_owned());
        }
        if let Some(Err(why)) = &self.nodes {
            lines.push(format!("Its nodes could not be looked at: {why}"));
        }
        Diagnostic::warning(summary, lines.join("\n"))
    }
}

impl Nodes {
    /// Says how many leave at a time, and in how many waves.
    fn pace(&self) -> Option<String> {
        let at_once = self.at_once.filter(|_| self.count > 0)?;
        let waves = |at_once: usize| plural(self.count.div_ceil(at_once), "wave");
        Some(match at_once {
            0 => format!("The budgets that hold now let none go: one at a time all the same, {}.", waves(1)),
            _ if at_once >= self.count => "The budgets that hold now let all of them go at once.".to_owned(),
            _ => format!("At most {at_once} at a time under the budgets that hold now: {}.", waves(at_once)),
        })
    }
}

impl Ending {
    const fn told(self) -> &'static str {
        match self {
            Self::Drained => {
                "Its nodes are drained as its budgets allow, one at a time at least, and all of them after half of `timeouts.delete`."
            }
            Self::Hurried => "Its nodes are all asked to leave at once, as `drain_on_destroy = false` says.",
            Self::AwaitedBy => {
                "It waits until the last of its nodes is gone: let its pools name another class first, so that they drift."
            }
        }
    }
}

/// Writes the warning of a plan that cannot be previewed, since these attributes are not known before it is applied.
pub fn unknown_warning(kind: &str, name: &str, attributes: &[String]) -> Diagnostic {
    let attributes = some(attributes.iter().map(String::as_str), ", ");
    let summary = format!("{kind} {name:?}: what becomes of nodes is not known yet");
    Diagnostic::warning(
        summary,
        format!(
            "{attributes} will be known when other resources are applied. Apply those first (`-target`) to see a preview in the next plan."
        ),
    )
}

/// Tells what a changed selector finds.
fn found(finds: &Finds) -> String {
    let (field, ids) = (finds.field, |ids: &BTreeSet<String>| some(ids.iter().map(String::as_str), ", "));
    if finds.after.is_empty() {
        return format!("`{field}` find nothing in AWS: the class will not be ready, and no node can be made of it.");
    }
    match &finds.before {
        before if before.is_empty() => format!("`{field}` find {}.", ids(&finds.after)),
        before if *before == finds.after => format!("`{field}` find what they found before: {}.", ids(before)),
        before => format!("`{field}` find {}; before, {}.", ids(&finds.after), ids(before)),
    }
}

fn types(before: Option<&Offer>, after: &Offer) -> String {
    match before {
        Some(before) if before.types != after.types => format!("{} -> {} types", before.types, after.types),
        _ => plural(after.types, "type"),
    }
}

fn launches(before: Option<&Offer>, after: &Offer) -> String {
    match before {
        Some(before) if before != after => format!("{}; before, {}", told(after), told(before)),
        _ => told(after),
    }
}

fn told(offer: &Offer) -> String {
    let price = |price: Option<Price>| price.map_or_else(|| "?".to_owned(), |price| format!("${:.4}", price.dollars()));
    let (cheapest, typical) = (price(offer.cheapest), price(offer.typical));
    let types = match (offer.types, offer.cheapest) {
        (0, _) => "no instance type".to_owned(),
        (types, None) => format!("{}, at a price that is not known", plural(types, "instance type")),
        (1, Some(_)) => format!("1 instance type, at {cheapest} per hour"),
        (types, Some(_)) => {
            format!("{types} instance types, the cheapest at {cheapest} and a typical one at {typical} per hour")
        }
    };
    match offer.newer.as_slice() {
        [] => types,
        newer => format!("{types} (karp's table does not know {})", some(newer.iter().map(String::as_str), ", ")),
    }
}

/// Says in a few words what becomes of the nodes.
fn fate(impact: &Impact, can_launch: bool) -> String {
    if impact.total == 0 {
        return "no nodes".to_owned();
    }
    let (count, end) = match impact.replaced() {
        (sure, 0) => (sure.to_string(), if sure == 0 { "" } else { pace(impact) }),
        (0, possible) => (format!("up to {possible}"), pace(impact)),
        (sure, possible) => (format!("{sure} to {}", sure + possible), pace(impact)),
    };
    let verb = if can_launch { "will be replaced" } else { "drift and cannot be replaced" };
    format!("{count} of {} nodes {verb}{end}", impact.total)
}

const fn pace(impact: &Impact) -> &'static str {
    if impact.at_once == 0 { ", none now" } else { "" }
}

fn of_nodes(impact: &Impact, can_launch: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let drifts = !impact.drifting.is_empty();
    if drifts {
        lines.extend(those(impact, "Drifting", |certainty| certainty != Certainty::Possible));
        lines.extend(selected(impact));
        lines.extend(already(impact));
    } else if impact.total > 0 {
        let none = match impact.total {
            1 => "Its node does not drift".to_owned(),
            total => format!("None of its {total} nodes drifts"),
        };
        lines.push(format!("{none} by this change ({}).", impact.changed.join(", ")));
    }
    lines.extend(budgets(impact, drifts).filter(|_| can_launch));
    lines.extend(blocked(impact));
    if impact.leaving > 0 {
        lines.push(format!("On their way out already: {}.", plural(impact.leaving as usize, "node")));
    }
    lines.extend(resized(impact));
    if !impact.over_limit.is_empty() {
        let over = impact.over_limit.join(", ");
        lines.push(format!(
            "Its nodes have more than `limits` allow ({over}): none can be launched until some are gone."
        ));
    }
    lines.extend(impact.unchecked.as_ref().map(|why| format!("What blocks them could not be looked at: {why}")));
    lines
}

/// Tells what comes and goes so that a static pool has as many nodes as it is to have.
fn resized(impact: &Impact) -> Option<String> {
    let (wanted, there) = impact.resized?;
    let there = u64::from(there);
    let (count, fate) = match wanted < there {
        true => (there - wanted, "too many, which are given up at once, whatever its budgets say"),
        false => (wanted - there, "too few, which are made as its limits allow"),
    };
    Some(format!("`replicas` is {wanted}, and it has {there} that stay: {count} {fate}."))
}

/// Names nodes, and why they drift.
fn those(impact: &Impact, verb: &str, of: impl Fn(Certainty) -> bool) -> Option<String> {
    let nodes: Vec<_> = impact.drifting.iter().filter(|node| of(node.certainty)).collect();
    let mut reasons: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for node in &nodes {
        let (count, because) = reasons.entry(&node.reason).or_default();
        *count += 1;
        because.extend(node.because.iter().map(String::as_str));
    }
    let reason = |(reason, (count, because)): (&&str, &(usize, BTreeSet<&str>))| match because.is_empty() {
        true => format!("{count} by {reason}"),
        false => format!("{count} by {reason} ({})", joined(because)),
    };
    let reasons: Vec<String> = reasons.iter().map(reason).collect();
    let names = some(nodes.iter().map(|node| node.name.as_str()), ", ");
    (!nodes.is_empty()).then(|| format!("{verb}: {}: {names}.", reasons.join(", ")))
}

/// Tells of nodes that perhaps drift, and on what it depends.
fn selected(impact: &Impact) -> Vec<String> {
    let by_hash = Drift::NodeClass.to_string();
    let possible = || impact.drifting.iter().filter(|node| node.certainty == Certainty::Possible);
    let mut lines: Vec<String> =
        those(impact, "Perhaps drifting", |certainty| certainty == Certainty::Possible).into_iter().collect();
    lines.extend(possible().any(|node| node.reason != by_hash).then(|| BY_SELECTORS.to_owned()));
    lines.extend(possible().any(|node| node.reason == by_hash).then(|| BY_HASH.to_owned()));
    lines
}

fn already(impact: &Impact) -> Option<String> {
    let count = impact.drifting.iter().filter(|node| node.certainty == Certainty::Already).count();
    (count > 0).then(|| format!("{count} of them drifted before this change."))
}

fn budgets(impact: &Impact, drifts: bool) -> Option<String> {
    let before = impact.at_once_before.filter(|before| *before != impact.at_once);
    let (sure, possible) = impact.replaced();
    if (!drifts || sure + possible == 0) && before.is_none() {
        return None;
    }
    let before = before.map_or_else(String::new, |before| format!(" (before, {before})"));
    let limits = if impact.is_narrow { " and `limits.nodes`" } else { "" };
    let most =
        format!("At most {} may be replaced at a time under the budgets that hold now{limits}{before}", impact.at_once);
    let opens = impact.timeline.iter().find(|turn| turn.at_once > 0);
    let opens = opens.map_or_else(String::new, |turn| format!("; from {} on, {} at a time", turn.at, turn.at_once));
    Some(match impact.waves {
        _ if impact.at_once == 0 => format!("The budgets that hold now{limits} let none go{before}{opens}."),
        Some(0) => format!("{most}."),
        Some(waves) => format!("{most}: {}.", plural(waves as usize, "wave")),
        None => format!("{most}; those of one pool let none go."),
    })
}

fn blocked(impact: &Impact) -> Option<String> {
    let of = |node: &super::Drifting| Some(format!("{}: {}", node.name, node.blocked_by.as_ref()?));
    let blocked: Vec<String> = impact.drifting.iter().filter_map(of).collect();
    let shown = some(blocked.iter().map(String::as_str), "; ");
    (!blocked.is_empty()).then(|| format!("{} cannot be disrupted now: {shown}.", blocked.len()))
}

/// Lists attributes, and labels each with all its values.
fn joined(because: &BTreeSet<&str>) -> String {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in because {
        let (name, value) = one.split_once('=').map_or((*one, None), |(name, value)| (name, Some(value)));
        values.entry(name).or_default().extend(value);
    }
    let told = values.iter().map(|(name, values)| match values.is_empty() {
        true => (*name).to_owned(),
        false => format!("{name}={}", some(values.iter().copied(), "|")),
    });
    some(told.collect::<Vec<_>>().iter().map(String::as_str), ", ")
}

fn some<'a>(all: impl ExactSizeIterator<Item = &'a str>, between: &str) -> String {
    let more = all.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> = all.take(SHOWN).map(str::to_owned).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(between)
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
