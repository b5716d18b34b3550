//! What the API server tells of the nodes that a change concerns.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels};
use karp_domain::cluster::{Node, Pod, PodBudget, Pool};
use karp_kube::Error;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::find::find;
use super::selection::{Finds, Selection};
use super::{Impact, Nodes, Offer, Surroundings, block, class_impact, class_offer, impact, obstacles};
use crate::resources::listed;
use crate::session::Session;

/// A plan does not wait longer than this for the cluster.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// What blocks nodes is left out of a plan after this long; the rest of [`PATIENCE`] is for connecting.
const GLANCE: Duration = Duration::from_millis(1_500);
/// What selectors find is left open in a plan after this long: what blocks nodes is asked for then, and takes some hundred milliseconds.
const SELECTING: Duration = Duration::from_millis(900);
/// What is told where the API server does not answer in time.
pub const TOO_LONG: &str = "the API server took too long";
/// So many things that hold nodes are named.
const SHOWN: usize = 3;
/// Pods that can block a node: on one, and not ended.
const PODS_ON_NODES: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// All that is known before a class is changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClassPreview {
    /// What its pools may launch now; nothing without pools.
    pub before: Option<Offer>,
    /// What they may launch then.
    pub after: Offer,
    /// What becomes of its nodes.
    pub impact: Impact,
    /// What its changed selectors find, where that was looked up.
    pub finds: Vec<Finds>,
    /// The static pools of it.
    pub statics: Vec<String>,
}

/// Looks at the pool's nodes, and at what blocks those that drift, however long it takes.
pub async fn look(client: &Client, before: &NodePool, after: &NodePool) -> Result<Impact, Error> {
    let now = Timestamp::now();
    let mut impact = of_pool(client, before, after, now).await?;
    if !impact.drifting.is_empty() {
        block(&mut impact, &surroundings(client, &label(labels::NODE_POOL, after)).await?, now);
    }
    Ok(impact)
}

/// Looks at the pool's nodes as a plan does: what blocks them is left out where it cannot be had in time.
pub async fn glance(client: &Client, before: &NodePool, after: &NodePool) -> Result<Impact, Error> {
    let (now, started) = (Timestamp::now(), Instant::now());
    let mut impact = of_pool(client, before, after, now).await?;
    glance_around(client, &mut impact, &label(labels::NODE_POOL, after), now, started + GLANCE).await;
    tell(&impact, started);
    Ok(impact)
}

/// Looks at the nodes of a class, and at what blocks those that drift, however long it takes.
pub async fn look_at_class(
    session: &Session,
    client: &Client,
    change: [&Ec2NodeClass; 2],
) -> Result<ClassPreview, Error> {
    let now = Timestamp::now();
    let [before, after] = change;
    let (living, selection) = futures::join!(living(client), find(session, client, before, after));
    let (claims, pools) = living?;
    let mut seen = ClassPreview::of(change, &selection, &pools, &claims, now);
    if !seen.impact.drifting.is_empty() {
        block(&mut seen.impact, &surroundings(client, &label(labels::EC2_NODE_CLASS, after)).await?, now);
    }
    Ok(seen)
}

/// Looks at the nodes of a class as a plan does: what its selectors find is left open, and what blocks the nodes is left out, where it
/// cannot be had in time.
pub async fn glance_at_class(
    session: &Session,
    client: &Client,
    change: [&Ec2NodeClass; 2],
) -> Result<ClassPreview, Error> {
    let (now, started) = (Timestamp::now(), Instant::now());
    let [before, after] = change;
    let selecting = tokio::time::timeout(SELECTING, find(session, client, before, after));
    let (living, selection) = futures::join!(living(client), selecting);
    let (claims, pools) = living?;
    let mut seen = ClassPreview::of(change, &selection.unwrap_or_default(), &pools, &claims, now);
    glance_around(client, &mut seen.impact, &label(labels::EC2_NODE_CLASS, after), now, started + GLANCE).await;
    tell(&seen.impact, started);
    Ok(seen)
}

/// All NodeClaims and NodePools.
async fn living(client: &Client) -> Result<(Vec<NodeClaim>, Vec<Pool>), Error> {
    let all = ListParams::default();
    let (claims, pools) = futures::try_join!(listed::<NodeClaim>(client, &all), listed::<NodePool>(client, &all))?;
    Ok((claims, pools.iter().filter_map(|pool| Pool::from_kube(pool).ok()).collect()))
}

/// Logs what a look has cost.
fn tell(impact: &Impact, started: Instant) {
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(nodes = impact.total, drifting = impact.drifting.len(), took_ms, "looked at the nodes of a change");
}

impl Nodes {
    /// Looks as a plan does at the nodes of a selector, of which so many leave at a time as `pace` says, and at what holds pods on them.
    pub async fn glance(
        client: &Client,
        selector: &str,
        pace: impl FnOnce(usize) -> Option<usize>,
    ) -> Result<Self, Error> {
        let until = Instant::now() + GLANCE;
        let count = listed::<NodeClaim>(client, &ListParams::default().labels(selector)).await?.len();
        let held = match count {
            0 => Ok(String::new()),
            _ => around(client, selector, until).await.map(|around| told(&around, Timestamp::now())),
        };
        Ok(Self { count, at_once: pace(count), held })
    }
}

/// Tells what holds pods on the nodes of a selector, however long it takes to look; empty where nothing does.
pub async fn held(client: &Client, nodes: &str) -> Result<String, Error> {
    Ok(told(&surroundings(client, nodes).await?, Timestamp::now()))
}

fn told(around: &Surroundings, now: Timestamp) -> String {
    let found = obstacles(around, now);
    let more = if found.len() > SHOWN { ", …" } else { "" };
    let shown: Vec<String> = found.into_iter().take(SHOWN).collect();
    shown.join(", ") + more
}

impl ClassPreview {
    /// Tells what a change of a class does to the nodes that live.
    pub fn of(
        change: [&Ec2NodeClass; 2],
        selection: &Selection,
        pools: &[Pool],
        claims: &[NodeClaim],
        now: Timestamp,
    ) -> Self {
        let [before, after] = change;
        let name = after.name_any();
        let own = || pools.iter().filter(|pool| pool.is_ours() && *pool.class.name == *name);
        Self {
            before: own().next().map(|_| class_offer(own(), &before.spec)),
            after: class_offer(own(), &after.spec),
            impact: class_impact(change, selection, pools, claims, now),
            finds: selection.finds(),
            statics: own().filter(|pool| pool.is_static()).map(|pool| pool.name.to_string()).collect(),
        }
    }
}

fn label(key: &str, object: &impl ResourceExt) -> String {
    format!("{key}={}", object.name_any())
}

async fn of_pool(client: &Client, before: &NodePool, after: &NodePool, now: Timestamp) -> Result<Impact, Error> {
    let pool =
        Pool::from_kube(after).map_err(|error| Error::Invalid { causes: Vec::new(), message: error.to_string() })?;
    let params = ListParams::default().labels(&label(labels::NODE_POOL, after));
    let claims = listed::<NodeClaim>(client, &params).await?;
    Ok(impact(before, after, &pool, &claims, now))
}

async fn glance_around(client: &Client, impact: &mut Impact, nodes: &str, now: Timestamp, until: Instant) {
    if impact.drifting.is_empty() {
        return;
    }
    match around(client, nodes, until).await {
        Ok(around) => block(impact, &around, now),
        Err(why) => impact.unchecked = Some(why),
    }
}

/// Looks around nodes until then, or says why it could not.
async fn around(client: &Client, nodes: &str, until: Instant) -> Result<Surroundings, String> {
    match tokio::time::timeout_at(until, surroundings(client, nodes)).await {
        Ok(looked) => looked.map_err(|error| error.to_string()),
        Err(_) => Err(TOO_LONG.to_owned()),
    }
}

async fn surroundings(client: &Client, nodes: &str) -> Result<Surroundings, Error> {
    // From the API server's memory: a plan needs no newer answer.
    let params = ListParams::default().match_any();
    let (of_nodes, of_pods) = (params.clone().labels(nodes), params.clone().fields(PODS_ON_NODES));
    let all = (Api::<core::Node>::all(client.clone()), Api::<core::Pod>::all(client.clone()));
    let budgets = Api::<policy::PodDisruptionBudget>::all(client.clone());
    let (nodes, pods, budgets) =
        futures::try_join!(all.0.list_metadata(&of_nodes), all.1.list(&of_pods), budgets.list(&params))?;
    let node = |metadata| Node::from_kube(&core::Node { metadata, ..core::Node::default() }).ok();
    Ok(Surroundings {
        nodes: nodes.items.into_iter().filter_map(|found| node(found.metadata)).collect(),
        pods: pods.items.iter().filter_map(|pod| Pod::from_kube(pod).ok()).collect(),
        budgets: budgets.items.iter().filter_map(|budget| PodBudget::from_kube(budget).ok().map(Arc::new)).collect(),
    })
}
