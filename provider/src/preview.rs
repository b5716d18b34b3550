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
use karp_domain::api::{BudgetReason, NodeClaim, NodePool, hash, labels};
use karp_domain::catalogue::{Catalogue, Market, NodeSettings, Price, Zone, builtin};
use karp_domain::cluster::{Pod, PodBudget, Pool, allowed, blocking};
use karp_domain::lifecycle::{Drift, drift};
use karp_domain::requirement::Requirements;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use tfplugin::Diagnostic;

/// The zone of a catalogue whose user named none.
const ANY_ZONE: &str = "any";
/// A plan does not wait longer than this for the cluster.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// So many names of one kind are shown.
const SHOWN: usize = 5;
/// The condition of a node that is no longer what its pool and class say.
const DRIFTED: &str = "Drifted";

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

impl Impact {
    /// How many rounds it takes to replace all; nothing where the budgets allow none now.
    pub fn waves(&self) -> Option<u32> {
        let drifting = u32::try_from(self.drifting.len()).unwrap_or(u32::MAX);
        (self.at_once > 0).then(|| drifting.div_ceil(self.at_once))
    }
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
        let already = conditions::get(own, DRIFTED).filter(|_| conditions::is_true(own, DRIFTED));
        let comes = drift(claim, pool, &stamp, &BTreeMap::new(), None, now).map(|drift: Drift| drift.to_string());
        comes.or_else(|| Some(already?.reason.clone()))
    };
    let drifting = alive.filter_map(|claim| {
        let name = claim.status.as_ref().and_then(|status| status.node_name.clone());
        Some(Drifting { reason: reason(claim)?, name: name.unwrap_or_else(|| claim.name_any()), blocked_by: None })
    });
    let total = u32::try_from(claims.len()).unwrap_or(u32::MAX);
    let at_once = allowed(&pool.budgets, BudgetReason::Drifted, total, now).min(total);
    Impact { total, drifting: drifting.collect(), at_once }
}

/// Finds what forbids to disrupt the drifting nodes now: pods that say so, and budgets without allowance.
pub fn block(impact: &mut Impact, pods: &[Pod], budgets: &[Arc<PodBudget>], now: Timestamp) {
    for node in &mut impact.drifting {
        let mut own =
            pods.iter().filter(|pod| pod.node.as_deref() == Some(node.name.as_str()) && pod.is_reschedulable());
        node.blocked_by = own.find_map(|pod| {
            if pod.is_protected(now) {
                return Some(format!("pod {} (karpenter.sh/do-not-disrupt)", pod.key));
            }
            blocking(budgets, pod).map(|budget| format!("PodDisruptionBudget {} (pod {})", budget.key, pod.key))
        });
    }
}

/// Looks at the pool's nodes, and at what blocks those that drift.
pub async fn look(client: &Client, before: &NodePool, after: &NodePool) -> Result<Impact, karp_kube::Error> {
    let pool = Pool::from_kube(after)
        .map_err(|error| karp_kube::Error::Invalid { causes: Vec::new(), message: error.to_string() })?;
    let params = ListParams::default().labels(&format!("{}={}", labels::NODE_POOL, pool.name));
    let claims = match Api::<NodeClaim>::all(client.clone()).list(&params).await.map_err(karp_kube::Error::from) {
        Ok(claims) => claims.items,
        Err(karp_kube::Error::UnknownKind { .. } | karp_kube::Error::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let now = Timestamp::now();
    let mut impact = impact(before, after, &pool, &claims, now);
    if !impact.drifting.is_empty() {
        // From the API server's memory: a plan needs no newer answer.
        let params = ListParams::default().match_any();
        let pods = Api::<core::Pod>::all(client.clone());
        let budgets = Api::<policy::PodDisruptionBudget>::all(client.clone());
        let (pods, budgets) = futures::try_join!(pods.list(&params), budgets.list(&params))?;
        let pods: Vec<Pod> = pods.items.iter().filter_map(|pod| Pod::from_kube(pod).ok()).collect();
        let budgets: Vec<Arc<PodBudget>> =
            budgets.items.iter().filter_map(|budget| PodBudget::from_kube(budget).ok().map(Arc::new)).collect();
        block(&mut impact, &pods, &budgets, now);
    }
    Ok(impact)
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
    let _ = match impact.waves() {
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
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn pool(change: impl Fn(&mut Json)) -> NodePool {
        let mut pool = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
            "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i", "c7i"] }],
            } },
            "disruption": { "budgets": [{ "nodes": "10%" }] },
        } });
        change(&mut pool);
        serde_json::from_value(pool).expect("a pool")
    }

    /// Forty nodes as `before` made them, every fourth of family c7i.
    fn claims(before: &NodePool) -> Vec<NodeClaim> {
        (0..40)
            .map(|at| {
                let family = if at % 4 == 0 { "c7i" } else { "m7i" };
                serde_json::from_value(json!({
                    "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                    "metadata": { "name": format!("default-{at}"), "labels": {
                        "karpenter.sh/nodepool": "default", "karpenter.k8s.aws/instance-family": family, "team": "a",
                    }, "annotations": {
                        "karpenter.sh/nodepool-hash": hash::node_pool(&before.spec),
                        "karpenter.sh/nodepool-hash-version": hash::NODE_POOL_VERSION,
                    } },
                    "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [] },
                    "status": { "nodeName": format!("node-{at}") },
                }))
                .expect("a NodeClaim")
            })
            .collect()
    }

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().expect("a time")
    }

    fn preview(change: impl Fn(&mut Json)) -> Preview {
        let (before, after) = (pool(|_| {}), pool(change));
        let read = |pool: &NodePool| Pool::from_kube(pool).expect("readable");
        Preview {
            before: Some(offer(&read(&before).requirements)),
            after: offer(&read(&after).requirements),
            impact: Some(impact(&before, &after, &read(&after), &claims(&before), now())),
            unseen: None,
        }
    }

    #[test]
    fn a_label_replaces_all_nodes_in_waves() {
        let seen = preview(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
        let impact = seen.impact.as_ref().expect("nodes");
        assert_eq!((impact.drifting.len(), impact.at_once, impact.waves()), (40, 4, Some(10)));
        let warning = seen.warning("default");
        assert!(warning.summary.ends_with("types, 40 of 40 nodes will be replaced"), "{}", warning.summary);
        assert!(
            warning.detail.contains("node-0 (NodePoolDrifted)") && warning.detail.contains("10 waves"),
            "{}",
            warning.detail
        );
    }

    #[test]
    fn a_narrower_requirement_replaces_those_outside_of_it() {
        let requirements = "/spec/template/spec/requirements/0/values";
        let seen = preview(|pool| *pool.pointer_mut(requirements).expect("values") = json!(["m7i"]));
        let impact = seen.impact.clone().expect("nodes");
        assert_eq!((impact.drifting.len(), impact.waves()), (10, Some(3)));
        assert!(impact.drifting.iter().all(|node| node.reason == "RequirementsDrifted"));
        assert!(
            seen.after.types < seen.before.as_ref().expect("types").types && seen.after.typical > seen.after.cheapest
        );
    }

    #[test]
    fn more_room_or_another_budget_replaces_nothing() {
        let wider = preview(|pool| {
            pool["spec"]["template"]["spec"]["requirements"][0]["values"] = json!(["m7i", "c7i", "r7i"]);
        });
        assert!(wider.tells() && wider.impact.expect("nodes").drifting.is_empty());
        let same = preview(|pool| pool["spec"]["disruption"]["budgets"][0]["nodes"] = json!("1"));
        assert!(!same.tells(), "{same:?}");
    }

    #[test]
    fn no_type_and_no_budget_are_told() {
        let none = preview(|pool| {
            pool["spec"]["template"]["spec"]["requirements"][0]["values"] = json!(["m99"]);
            pool["spec"]["disruption"]["budgets"][0]["nodes"] = json!("0");
        });
        let warning = none.warning("default");
        assert!(warning.summary.contains("-> 0 types"), "{}", warning.summary);
        assert!(warning.detail.contains("loosen") && warning.detail.contains("allow none"), "{}", warning.detail);
    }

    #[test]
    fn what_blocks_a_node_is_named() {
        let mut seen = preview(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
        let pod = |node: &str, name: &str, annotations: Json, app: &str| {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "web", "name": name,
                "annotations": annotations, "labels": { "app": app } }, "spec": { "nodeName": node, "containers": [] },
                "status": { "phase": "Running" } });
            Pod::from_kube(&serde_json::from_value(pod).expect("a pod")).expect("readable")
        };
        let pods = [
            pod("node-1", "keep", json!({ "karpenter.sh/do-not-disrupt": "true" }), "a"),
            pod("node-2", "db-0", json!({}), "db"),
            pod("node-3", "free", json!({}), "a"),
        ];
        let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "namespace": "web", "name": "db" },
            "spec": { "selector": { "matchLabels": { "app": "db" } } }, "status": { "disruptionsAllowed": 0, "currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1 } });
        let budget = PodBudget::from_kube(&serde_json::from_value(budget).expect("a budget")).expect("readable");
        let impact = seen.impact.as_mut().expect("nodes");
        block(impact, &pods, &[Arc::new(budget)], now());
        let blocked: Vec<&str> = impact.drifting.iter().filter_map(|node| node.blocked_by.as_deref()).collect();
        assert_eq!(
            blocked,
            ["pod web/keep (karpenter.sh/do-not-disrupt)", "PodDisruptionBudget web/db (pod web/db-0)"]
        );
        assert!(seen.warning("default").detail.contains("2 cannot be disrupted now: node-1 by pod web/keep"));
    }
}
