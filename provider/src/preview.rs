//! What a change of a node pool will do, before it is made: which instance types it may launch, at what price, and which of its nodes will
//! be replaced, how many at a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use karp_domain::api::conditions;
use karp_domain::api::hash::NodeClassVersion;
use karp_domain::api::{BudgetReason, Ec2NodeClass, NodeClaim, NodePool, hash, labels};
use karp_domain::catalogue::{Catalogue, Market, NodeSettings, Price, Zone, builtin};
use karp_domain::cluster::{Pod, PodBudget, Pool, allowed, blocking};
use karp_domain::lifecycle::{Drift, drift};
use karp_domain::requirement::Requirements;
use karp_kube::Error;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use tfplugin::Diagnostic;

use crate::resources::listed;

/// The zone of a catalogue whose user named none.
const ANY_ZONE: &str = "any";
/// A plan does not wait longer than this for the cluster.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// So many names of one kind are shown.
const SHOWN: usize = 5;

/// What requirements leave to launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offer {
    /// How many instance types.
    pub types: usize,
    /// The price per hour of the cheapest of them.
    pub cheapest: Option<Price>,
    /// The price per hour of the middle one, when they are ordered by price.
    pub typical: Option<Price>,
}

/// A node that a change makes drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drifting {
    /// The Node's name, or the NodeClaim's where it has none yet.
    pub name: String,
    /// Why, as its condition will say.
    pub reason: String,
    /// What forbids to disrupt it now.
    pub blocked_by: Option<String>,
}

/// What a change does to the nodes that live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impact {
    /// The pool's nodes.
    pub total: u32,
    /// Those that will be replaced.
    pub drifting: Vec<Drifting>,
    /// How many may be replaced at the same time, under the budgets that hold now.
    pub at_once: u32,
    /// How many rounds it takes to replace all; nothing where a pool's budgets allow none now.
    pub waves: Option<u32>,
}

/// All that is known before a change is made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preview {
    /// What the pool may launch now; nothing for a new pool.
    pub before: Option<Offer>,
    /// What it may launch then.
    pub after: Offer,
    /// What becomes of its nodes; nothing for a new pool.
    pub impact: Option<Impact>,
    /// Why the nodes could not be looked at.
    pub unseen: Option<String>,
}

/// Tells what requirements leave, by the built-in table of types and its estimated prices.
pub fn offer(requirements: &Requirements) -> Offer {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    let zones = [Zone::new(ANY_ZONE, "")];
    let catalogue = CATALOGUE.get_or_init(|| Catalogue::estimated(builtin(), &zones, &NodeSettings::default()));
    let (mut types, mut market) = catalogue.select(requirements);
    // Which zones there are is not known here, so what is asked of them is left open.
    market.zones = Market::ANY.zones;
    types.intersect_with(&catalogue.offered(market));
    let mut prices: Vec<Price> = types.ones().filter_map(|at| catalogue.cheapest(at, market)).collect();
    prices.sort();
    Offer { types: prices.len(), cheapest: prices.first().copied(), typical: prices.get(prices.len() / 2).copied() }
}

/// Tells what becomes of a pool's nodes when the pool becomes `after`. `before` is what it was made by: a template that stays the same
/// makes no node drift, whatever the controller of another version has stamped.
pub fn impact(before: &NodePool, after: &NodePool, pool: &Pool, claims: &[NodeClaim], now: Timestamp) -> Impact {
    let mut stamp = BTreeMap::new();
    if hash::node_pool(&before.spec) != hash::node_pool(&after.spec) {
        stamp.insert(labels::NODE_POOL_HASH.to_owned(), hash::node_pool(&after.spec));
        stamp.insert(labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned());
    }
    let alive = claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
    let reason = |claim: &NodeClaim| {
        let own = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let already =
            conditions::get(own, conditions::DRIFTED).filter(|_| conditions::is_true(own, conditions::DRIFTED));
        let comes = drift(claim, pool, &stamp, &BTreeMap::new(), None, now).map(|drift: Drift| drift.to_string());
        comes.or_else(|| Some(already?.reason.clone()))
    };
    let drifting =
        alive.filter_map(|claim| Some(Drifting { reason: reason(claim)?, name: node_of(claim), blocked_by: None }));
    let total = count(claims.len());
    let (drifting, at_once) = (drifting.collect::<Vec<_>>(), at_once(pool, total, now));
    let waves = waves(drifting.len(), at_once);
    Impact { total, drifting, at_once, waves }
}

/// Tells what becomes of the nodes of a class when the class becomes `after`, by the hash that each of them is stamped with. What the
/// selectors find is compared by the controller later, and not known here.
pub fn class_impact(
    before: &Ec2NodeClass,
    after: &Ec2NodeClass,
    pools: &[Pool],
    claims: &[NodeClaim],
    now: Timestamp,
) -> Impact {
    let name = after.name_any();
    let of_class = |claim: &&NodeClaim| {
        let class = &claim.spec.node_class_ref;
        class.group == labels::AWS_GROUP && class.name == name
    };
    let changed = |claim: &&NodeClaim| {
        let stamp = claim.annotations().get(labels::EC2_NODE_CLASS_HASH_VERSION);
        let version = stamp.and_then(|stamp| NodeClassVersion::parse(stamp));
        // The cluster's CA is the same before and after.
        version.is_some_and(|version| {
            hash::node_class(&before.spec, version, "") != hash::node_class(&after.spec, version, "")
        })
    };
    let pool_of = |claim: &NodeClaim| claim.labels().get(labels::NODE_POOL).cloned().unwrap_or_default();
    let own: Vec<&NodeClaim> = claims.iter().filter(of_class).collect();
    let mut impact = Impact { total: count(own.len()), waves: Some(0), ..Impact::default() };
    let mut by_pool: BTreeMap<String, (u32, usize)> = BTreeMap::new();
    for claim in own {
        let (total, drifting) = by_pool.entry(pool_of(claim)).or_default();
        *total += 1;
        if claim.metadata.deletion_timestamp.is_none() && changed(&claim) {
            *drifting += 1;
            impact.drifting.push(Drifting {
                name: node_of(claim),
                reason: Drift::NodeClass.to_string(),
                blocked_by: None,
            });
        }
    }
    for (name, (total, drifting)) in by_pool.iter().filter(|(_, (_, drifting))| *drifting > 0) {
        let pool = pools.iter().find(|pool| *pool.name == **name);
        let at_once = pool.map_or(*total, |pool| at_once(pool, *total, now));
        impact.at_once += at_once;
        // Pools go on side by side: the slowest counts.
        impact.waves = impact.waves.zip(waves(*drifting, at_once)).map(|(one, other)| one.max(other));
    }
    impact
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn node_of(claim: &NodeClaim) -> String {
    let name = claim.status.as_ref().and_then(|status| status.node_name.clone());
    name.unwrap_or_else(|| claim.name_any())
}

fn at_once(pool: &Pool, total: u32, now: Timestamp) -> u32 {
    allowed(&pool.budgets, BudgetReason::Drifted, total, now).min(total)
}

fn waves(drifting: usize, at_once: u32) -> Option<u32> {
    (at_once > 0).then(|| count(drifting).div_ceil(at_once))
}

/// Finds what forbids to disrupt the drifting nodes now: pods that say so, and budgets without allowance.
pub fn block(impact: &mut Impact, pods: &[Pod], budgets: &[Arc<PodBudget>], now: Timestamp) {
    let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_reschedulable()) {
        if let Some(node) = &pod.node {
            on.entry(node).or_default().push(pod);
        }
    }
    for node in &mut impact.drifting {
        let own = on.get(node.name.as_str()).into_iter().flatten();
        node.blocked_by = own.copied().find_map(|pod| {
            if pod.is_protected(now) {
                return Some(format!("pod {} (karpenter.sh/do-not-disrupt)", pod.key));
            }
            blocking(budgets, pod).map(|budget| format!("PodDisruptionBudget {} (pod {})", budget.key, pod.key))
        });
    }
}

/// Looks at the pool's nodes, and at what blocks those that drift.
pub async fn look(client: &Client, before: &NodePool, after: &NodePool) -> Result<Impact, Error> {
    let pool =
        Pool::from_kube(after).map_err(|error| Error::Invalid { causes: Vec::new(), message: error.to_string() })?;
    let params = ListParams::default().labels(&format!("{}={}", labels::NODE_POOL, pool.name));
    let claims = listed::<NodeClaim>(client, &params).await?;
    let now = Timestamp::now();
    let mut impact = impact(before, after, &pool, &claims, now);
    look_for_blocks(client, &mut impact, now).await?;
    Ok(impact)
}

/// Looks at the nodes of a class, and at what blocks those that drift.
pub async fn look_at_class(client: &Client, before: &Ec2NodeClass, after: &Ec2NodeClass) -> Result<Impact, Error> {
    let claims = listed::<NodeClaim>(client, &ListParams::default()).await?;
    let pools = if claims.is_empty() { Vec::new() } else { listed::<NodePool>(client, &ListParams::default()).await? };
    let pools: Vec<Pool> = pools.iter().filter_map(|pool| Pool::from_kube(pool).ok()).collect();
    let now = Timestamp::now();
    let mut impact = class_impact(before, after, &pools, &claims, now);
    look_for_blocks(client, &mut impact, now).await?;
    Ok(impact)
}

async fn look_for_blocks(client: &Client, impact: &mut Impact, now: Timestamp) -> Result<(), Error> {
    if impact.drifting.is_empty() {
        return Ok(());
    }
    // From the API server's memory: a plan needs no newer answer.
    let params = ListParams::default().match_any();
    let pods = Api::<core::Pod>::all(client.clone());
    let budgets = Api::<policy::PodDisruptionBudget>::all(client.clone());
    let (pods, budgets) = futures::try_join!(pods.list(&params), budgets.list(&params))?;
    let pods: Vec<Pod> = pods.items.iter().filter_map(|pod| Pod::from_kube(pod).ok()).collect();
    let budgets: Vec<Arc<PodBudget>> =
        budgets.items.iter().filter_map(|budget| PodBudget::from_kube(budget).ok().map(Arc::new)).collect();
    block(impact, &pods, &budgets, now);
    Ok(())
}

/// Writes the warning of a plan that changes a class; nothing where no node will be replaced.
pub fn class_warning(class: &str, looked: Result<Impact, String>) -> Option<Diagnostic> {
    let impact = match looked {
        Ok(impact) if impact.drifting.is_empty() => return None,
        Ok(impact) => impact,
        Err(why) => {
            let summary = format!("EC2NodeClass {class:?}: its nodes could not be looked at");
            return Some(Diagnostic::warning(summary, why));
        }
    };
    let summary =
        format!("EC2NodeClass {class:?}: {} of {} nodes will be replaced", impact.drifting.len(), impact.total);
    let mut detail = "What the selectors find may make more of them drift.".to_owned();
    tell_nodes(&mut detail, &impact);
    Some(Diagnostic::warning(summary, detail))
}

impl Preview {
    /// Says whether there is anything to tell.
    pub fn tells(&self) -> bool {
        let drifts = self.impact.as_ref().is_some_and(|impact| !impact.drifting.is_empty());
        self.before.as_ref() != Some(&self.after) || drifts
    }

    /// Writes the warning of a plan: name and counts in its summary, a few lines below.
    pub fn warning(&self, pool: &str) -> Diagnostic {
        let types = match &self.before {
            Some(before) if before.types != self.after.types => {
                format!("{} -> {} types", before.types, self.after.types)
            }
            _ => format!("{} types", self.after.types),
        };
        let nodes = self.impact.as_ref().filter(|impact| impact.total > 0).map_or_else(String::new, |impact| {
            format!(", {} of {} nodes will be replaced", impact.drifting.len(), impact.total)
        });
        Diagnostic::warning(format!("NodePool {pool:?}: {types}{nodes}"), self.detail())
    }

    fn detail(&self) -> String {
        let mut text = match &self.before {
            Some(before) if *before != self.after => {
                format!("It may launch {}; before, {}.", told(&self.after), told(before))
            }
            _ => format!("It may launch {}.", told(&self.after)),
        };
        text.push_str(" Prices are karp's estimates for us-east-1.");
        if self.after.types == 0 {
            text.push_str(" No node can be made: loosen `template.requirements`.");
        }
        if let Some(impact) = self.impact.as_ref().filter(|impact| !impact.drifting.is_empty()) {
            tell_nodes(&mut text, impact);
        }
        if let Some(why) = &self.unseen {
            let _ = write!(text, "\nIts nodes could not be looked at: {why}");
        }
        text
    }
}

fn told(offer: &Offer) -> String {
    let price = |price: Option<Price>| price.map_or_else(|| "?".to_owned(), |price| format!("${:.4}", price.dollars()));
    match offer.types {
        0 => "no instance type".to_owned(),
        types => {
            let (cheapest, typical) = (price(offer.cheapest), price(offer.typical));
            format!("{types} instance types, the cheapest at {cheapest} and a typical one at {typical} per hour")
        }
    }
}

fn tell_nodes(text: &mut String, impact: &Impact) {
    let some = |all: Vec<String>| {
        let more = if all.len() > SHOWN { ", …" } else { "" };
        let shown: Vec<String> = all.into_iter().take(SHOWN).collect();
        format!("{}{more}", shown.join(", "))
    };
    let of = |node: &Drifting| format!("{} ({})", node.name, node.reason);
    let names = some(impact.drifting.iter().map(of).collect());
    let count = impact.drifting.len();
    let _ = write!(text, "\n{count} of {} nodes will be replaced: {names}.", impact.total);
    let _ = match impact.waves {
        Some(waves) => {
            write!(text, "\nAt most {} at once under the budgets as they are now: {waves} waves.", impact.at_once)
        }
        None => write!(text, "\nThe budgets allow none of it now."),
    };
    let blocked: Vec<String> = impact
        .drifting
        .iter()
        .filter_map(|node| Some(format!("{} by {}", node.name, node.blocked_by.as_ref()?)))
        .collect();
    if !blocked.is_empty() {
        let count = blocked.len();
        let _ = write!(text, "\n{count} cannot be disrupted now: {}.", some(blocked));
    }
}

#[cfg(test)]
mod tests;
