//! Which nodes a change makes drift, and at what pace they may be replaced.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use karp_domain::api::hash::NodeClassVersion;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, conditions, hash, labels};
use karp_domain::cluster::Pool;
use karp_domain::lifecycle::{Drift, drift};
use karp_domain::quantity::Quantity;
use karp_domain::resources::{NODES, Resources};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value as Json;

use super::obstacle::look_at_claim;
use super::pace::{at_once, is_narrow, timeline, waves};
use super::selection::{IMAGES, RESERVATIONS, SECURITY_GROUPS, SUBNETS, Selection, reason_of};
use super::{Certainty, Drifting, Impact};
use crate::manifests::spec::attribute_of;

/// Selectors in the order in which the controller compares what they find.
const SELECTORS: [&str; 4] = [IMAGES, SUBNETS, RESERVATIONS, SECURITY_GROUPS];

/// Tells what becomes of a pool's nodes when the pool becomes `after`. `before` is what it was made by: a template that stays the same
/// makes no node drift, whatever the controller of another version has stamped.
pub fn impact(before: &NodePool, after: &NodePool, pool: &Pool, claims: &[NodeClaim], now: Timestamp) -> Impact {
    let changed = changed_of_pool(before, after);
    let renewed = hash::node_pool(&before.spec) != hash::node_pool(&after.spec);
    let mut stamp = BTreeMap::new();
    if renewed {
        stamp.insert(labels::NODE_POOL_HASH.to_owned(), hash::node_pool(&after.spec));
        stamp.insert(labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned());
    }
    let drifting = |claim: &NodeClaim| {
        let comes = drift(claim, pool, &stamp, &BTreeMap::new(), None, now);
        let because = match comes {
            Some(Drift::NodePool) => changed.iter().filter(|field| is_hashed(field)).cloned().collect(),
            Some(Drift::Requirements) => unmet(claim, pool),
            _ => Vec::new(),
        };
        let already = drifted(claim);
        // What the pool asked for is looked at anew; a reason that is the class's or the cloud's stays.
        let kept = already.filter(|reason| match *reason {
            "RequirementsDrifted" => false,
            "NodePoolDrifted" => !renewed,
            _ => true,
        });
        let reason = comes.map(|drift| drift.to_string()).or_else(|| kept.map(str::to_owned))?;
        Some(drifting(claim, Some(pool), reason, because, already.map_or(Certainty::Sure, |_| Certainty::Already)))
    };
    let total = count(claims.len());
    let leaving = count(claims.iter().filter(|claim| is_leaving(claim)).count());
    let there = total - leaving;
    let mut impact = Impact {
        total,
        leaving,
        resized: pool.replicas.filter(|wanted| *wanted != u64::from(there)).map(|wanted| (wanted, there)),
        drifting: claims.iter().filter(|claim| !is_leaving(claim)).filter_map(drifting).collect(),
        at_once: at_once(pool, total, now),
        is_narrow: is_narrow(pool, total, now),
        at_once_before: Pool::from_kube(before).ok().map(|pool| at_once(&pool, total, now)),
        over_limit: over_limit(pool, claims),
        timeline: timeline(&[(pool, total)], now),
        changed,
        ..Impact::default()
    };
    impact.waves = waves(count(impact.drifting.len()), impact.at_once);
    impact
}

/// Tells what becomes of the nodes of a class when the class becomes `after`, by the hash that each of them is stamped with, and by what
/// changed selectors find. Where that is not known, it is compared by the controller later, and each node may drift. `claims` are all that
/// there are.
pub fn class_impact(
    [before, after]: [&Ec2NodeClass; 2],
    selection: &Selection,
    pools: &[Pool],
    claims: &[NodeClaim],
    now: Timestamp,
) -> Impact {
    let name = after.name_any();
    let of_class = |claim: &&NodeClaim| {
        let class = &claim.spec.node_class_ref;
        class.is_ours() && class.name == name
    };
    let own: Vec<&NodeClaim> = claims.iter().filter(of_class).collect();
    let change = ClassChange::of(before, after);
    let mut impact = Impact { total: count(own.len()), waves: Some(0), ..Impact::default() };
    // Budgets are shares of all nodes of a pool, those of another class too.
    let mut by_pool: BTreeMap<&str, (u32, usize)> = BTreeMap::new();
    for claim in claims {
        by_pool.entry(pool_of(claim)).or_default().0 += 1;
    }
    for claim in own {
        if is_leaving(claim) {
            impact.leaving += 1;
        } else if let Some((reason, because, certainty)) = change.drift(claim, selection) {
            let name = pool_of(claim);
            by_pool.entry(name).or_default().1 += 1;
            let pool = pools.iter().find(|pool| *pool.name == *name);
            impact.drifting.push(self::drifting(claim, pool, reason, because, certainty));
        }
    }
    let mut moving = Vec::new();
    for (name, (total, drifting)) in by_pool.iter().filter(|(_, (_, drifting))| *drifting > 0) {
        let Some(pool) = pools.iter().find(|pool| *pool.name == **name) else { continue };
        let at_once = at_once(pool, *total, now);
        impact.at_once += at_once;
        impact.is_narrow |= is_narrow(pool, *total, now);
        // Pools go on side by side: the slowest counts.
        impact.waves = impact.waves.zip(waves(count(*drifting), at_once)).map(|(one, other)| one.max(other));
        moving.push((pool, *total));
    }
    impact.timeline = timeline(&moving, now);
    impact.changed = change.changed;
    impact
}

/// What is changed of a class.
struct ClassChange {
    changed: Vec<String>,
    /// Whether the hash of each version changes. The cluster's CA is the same before and after.
    hashes: [(NodeClassVersion, bool); 2],
}

impl ClassChange {
    fn of(before: &Ec2NodeClass, after: &Ec2NodeClass) -> Self {
        let hashes = [NodeClassVersion::V5, NodeClassVersion::V6].map(|version| {
            let hash = |class: &Ec2NodeClass| hash::node_class(&class.spec, version, "");
            (version, hash(before) != hash(after))
        });
        Self { changed: differences("", &before.spec, &after.spec), hashes }
    }

    fn drift(&self, claim: &NodeClaim, selection: &Selection) -> Option<(String, Vec<String>, Certainty)> {
        let (already, by_hash) = (drifted(claim), Drift::NodeClass.to_string());
        let stamp = claim.annotations().get(labels::EC2_NODE_CLASS_HASH_VERSION);
        let version = stamp.and_then(|stamp| NodeClassVersion::parse(stamp));
        let renewed = self.hashes.iter().any(|(of, differs)| *differs && version == Some(*of));
        // It was not made of `before`, and perhaps of `after`. The stamp does not tell: the cluster's CA in it is not known here.
        let is_behind = renewed && already == Some(by_hash.as_str());
        let because = || self.changed.iter().filter(|field| reason_of(field).is_none()).cloned().collect::<Vec<_>>();
        if renewed && !is_behind {
            let certainty = already.map_or(Certainty::Sure, |_| Certainty::Already);
            return Some((by_hash, because(), certainty));
        }
        if let Some(reason) = already.filter(|_| !is_behind) {
            return Some((reason.to_owned(), Vec::new(), Certainty::Already));
        }
        let by = |field: &'static str| {
            let is_changed = self.changed.iter().any(|changed| changed == field);
            Some((field, reason_of(field)?, is_changed.then(|| selection.drifts(field, claim))??))
        };
        let comes: Vec<_> = SELECTORS.into_iter().filter_map(by).collect();
        if let Some((field, reason, certainty)) = comes.iter().find(|(_, _, certainty)| *certainty == Certainty::Sure) {
            return Some(((*reason).to_owned(), vec![(*field).to_owned()], *certainty));
        }
        if is_behind {
            return Some((by_hash, because(), Certainty::Possible));
        }
        let (fields, reasons): (Vec<_>, Vec<_>) =
            comes.into_iter().map(|(field, reason, _)| (field.to_owned(), reason)).unzip();
        (!reasons.is_empty()).then(|| (reasons.join(" or "), fields, Certainty::Possible))
    }
}

fn drifting(
    claim: &NodeClaim,
    pool: Option<&Pool>,
    reason: String,
    because: Vec<String>,
    certainty: Certainty,
) -> Drifting {
    let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
    let name = node.unwrap_or_else(|| claim.name_any());
    let mut drifting = Drifting { name, reason, because, certainty, ..Drifting::default() };
    look_at_claim(claim, pool, &mut drifting);
    drifting
}

/// Answers the pool that a claim's label names; empty where it names none.
fn pool_of(claim: &NodeClaim) -> &str {
    claim.labels().get(labels::NODE_POOL).map(String::as_str).unwrap_or_default()
}

/// Answers the reason of a node that has drifted already.
fn drifted(claim: &NodeClaim) -> Option<&str> {
    let own = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let drifted = conditions::get(own, conditions::DRIFTED)?;
    conditions::is_true(own, conditions::DRIFTED).then_some(drifted.reason.as_str())
}

/// Says whether a node goes whatever is changed.
fn is_leaving(claim: &NodeClaim) -> bool {
    let status = claim.status.as_ref();
    claim.metadata.deletion_timestamp.is_some()
        || status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::DISRUPTION_REASON))
}

/// Answers what of a claim's labels the pool does not ask for any more.
fn unmet(claim: &NodeClaim, pool: &Pool) -> Vec<String> {
    // A change of these is one of the template.
    let by_hash =
        |key: &str| [labels::NODE_POOL, labels::EC2_NODE_CLASS].contains(&key) || pool.labels.contains_key(key);
    let asked = || pool.requirements.iter().filter(|wanted| !by_hash(wanted.key()));
    let own = claim.labels();
    let refused = asked().filter_map(|wanted| {
        let value = own.get(wanted.key()).filter(|value| !wanted.admits(value))?;
        Some(format!("{}={value}", wanted.key()))
    });
    let refused: Vec<String> = refused.collect();
    if !refused.is_empty() {
        return refused;
    }
    asked().filter(|wanted| !own.contains_key(wanted.key())).map(|wanted| format!("no {}", wanted.key())).collect()
}

/// Answers what the pool's nodes have more of than its limits allow.
fn over_limit(pool: &Pool, claims: &[NodeClaim]) -> Vec<String> {
    let mut used = Resources::new();
    for claim in claims.iter().filter(|claim| !is_leaving(claim)) {
        used.add(&Resources::new().with(NODES, Quantity::from_units(1)));
        let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
        capacity.into_iter().for_each(|capacity| used.add(capacity));
    }
    let exceeded = pool.limits.iter().filter(|(name, limit)| used.get(name) > *limit);
    exceeded.map(|(name, limit)| format!("{name} {} of {limit}", used.get(name))).collect()
}

/// Says whether a change of an attribute changes the hash that nodes are stamped with.
fn is_hashed(attribute: &str) -> bool {
    attribute.starts_with("template.") && attribute != "template.requirements"
}

/// Answers the attributes in which two pools differ.
fn changed_of_pool(before: &NodePool, after: &NodePool) -> Vec<String> {
    let (one, other) = (&before.spec, &after.spec);
    let mut changed = differences("template.", &one.template.metadata, &other.template.metadata);
    changed.extend(differences("template.", &one.template.spec, &other.template.spec));
    changed.extend(differences("disruption.", &one.disruption, &other.disruption));
    let own = differences("", one, other);
    changed.extend(own.into_iter().filter(|field| field != "template" && field != "disruption"));
    changed
}

/// Answers the fields in which two objects differ, as Terraform spells them.
fn differences(prefix: &str, one: &impl Serialize, other: &impl Serialize) -> Vec<String> {
    let fields = |object: Result<Json, serde_json::Error>| match object {
        Ok(Json::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (one, other) = (fields(serde_json::to_value(one)), fields(serde_json::to_value(other)));
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ = names.into_iter().filter(|name| one.get(*name) != other.get(*name));
    differ.map(|name| format!("{prefix}{}", attribute_of(name))).collect()
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
