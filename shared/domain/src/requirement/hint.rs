//! What was probably meant: keys and values that are one slip of the keyboard away from what exists.

use super::one::Requirement;
use super::value_set::{Value, ValueSet};
use crate::api::labels;

/// A label that takes the same values on every cluster.
pub struct Closed {
    key: &'static str,
    /// All that it can be.
    pub values: &'static [&'static str],
    /// What other tools call the values.
    aliases: &'static [(&'static str, &'static str)],
}

const CLOSED: &[Closed] = &[
    Closed {
        key: labels::ARCH,
        values: &["amd64", "arm64"],
        aliases: &[("x86_64", "amd64"), ("x86", "amd64"), ("x64", "amd64"), ("aarch64", "arm64"), ("arm", "arm64")],
    },
    Closed { key: labels::OS, values: &["linux", "windows"], aliases: &[] },
    Closed {
        key: labels::CAPACITY_TYPE,
        values: &["on-demand", "spot", "reserved"],
        aliases: &[("on_demand", "on-demand"), ("ondemand", "on-demand"), ("normal", "on-demand")],
    },
    Closed { key: labels::INSTANCE_TENANCY, values: &["default", "dedicated"], aliases: &[] },
    Closed { key: labels::INSTANCE_CAPABILITY_FLEX, values: TRUTHS, aliases: TRUE_OR_FALSE },
    Closed { key: labels::INSTANCE_ENCRYPTION_IN_TRANSIT, values: TRUTHS, aliases: TRUE_OR_FALSE },
];
const TRUTHS: &[&str] = &["true", "false"];
const TRUE_OR_FALSE: &[(&str, &str)] = &[("yes", "true"), ("no", "false")];

/// Returns a label, by its stable key, that takes the same values on every cluster.
#[must_use]
pub fn closed(key: &str) -> Option<&'static Closed> {
    CLOSED.iter().find(|closed| closed.key == key)
}

impl Closed {
    /// Returns the value that another one probably means.
    #[must_use]
    pub fn meant(&self, value: &str) -> Option<&'static str> {
        let alias = self.aliases.iter().find(|(other, _)| other.eq_ignore_ascii_case(value));
        alias.map(|(_, name)| *name).or_else(|| nearest(value, self.values.iter().copied()))
    }
}

/// Returns the key that a mistyped one probably means: the successor of a label of old, or a well-known or defined key that is near.
#[must_use]
pub fn key<'k>(wanted: &str, defined: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let successor = labels::SUCCESSORS.iter().find(|(old, _)| *old == wanted).map(|(_, new)| *new);
    let name = |key: &'k str| key.rsplit('/').next().filter(|name| !name.is_empty());
    let wanted_name = wanted.rsplit('/').next();
    let near = |known: &&'k str| {
        let limit = (known.len() / 5).clamp(1, 3);
        *known != wanted && (name(known) == wanted_name || distance(known, wanted, limit).is_some())
    };
    let known = labels::WELL_KNOWN.iter().copied().chain(defined);
    // the nearest; of equally near ones a well-known one, which comes first
    successor.or_else(|| known.filter(near).min_by_key(|known| distance(known, wanted, usize::MAX)))
}

/// Returns the value that a mistyped one probably means, if none of those that are wanted can be had and one is near what can. Silent for
/// labels whose real values lie near each other, such as instance types.
#[must_use]
pub fn value<'v>(wanted: &'v Requirement, offered: &'v Requirement) -> Option<&'v str> {
    let key = wanted.key();
    let dense = labels::is_well_known(key) && !matches!(key, labels::ZONE | labels::REGION | labels::NODE_POOL);
    let ValueSet::Only(asked) = wanted.values() else { return None };
    if let Some(closed) = closed(key) {
        let unknown = asked.iter().filter(|value| !closed.values.contains(&&***value));
        return unknown.into_iter().find_map(|value| closed.meant(value));
    }
    let ValueSet::Only(there) = offered.values() else { return None };
    let there = || there.iter().map(<Value as AsRef<str>>::as_ref);
    (!dense).then(|| asked.iter().find_map(|value| nearest(value, there())))?
}

/// Returns the name nearest to a mistyped one, if it is near enough to be meant. Numbers and names that differ in the last character alone
/// (`us-east-1a` and `us-east-1b`) are siblings, not slips.
#[must_use]
pub fn nearest<'n>(mistyped: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if mistyped.parse::<i64>().is_ok() {
        return None;
    }
    let stem = |name: &str| {
        let end = name.char_indices().next_back().map_or(0, |(at, _)| at);
        name[..end].to_owned()
    };
    let lower = mistyped.to_lowercase();
    let close = |name: &'n str| {
        let limit = if name.eq_ignore_ascii_case(mistyped) { 0 } else { (name.len() / 4).clamp(1, 2) };
        let siblings = name.len() == mistyped.len() && stem(name) == stem(mistyped);
        (name != mistyped && !siblings).then(|| distance(&name.to_lowercase(), &lower, limit))?.map(|far| (far, name))
    };
    names.into_iter().filter_map(close).min().map(|(_, name)| name)
}

/// Counts the insertions, deletions, substitutions and swaps of neighbours that lead from one word to the other; nothing when they are more
/// than `most`.
fn distance(a: &str, b: &str, most: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substituted = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = substituted.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    Some(row[b.len()]).filter(|far| *far <= most)
}
