//! `karp_nodes`: the nodes that controllers made, as the cluster knows them now.

use std::collections::BTreeMap;
use std::sync::Arc;

use karp_domain::api::conditions::{self, Condition};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::catalogue::{CapacityType, builtin_type, estimate_on_demand, estimate_spot};
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;
use tfplugin::{Attribute, Context, DataSource, Diagnostics, Schema, Value, async_trait};

use crate::provider::Handle;
use crate::resources::{failure, listed};

/// The nodes of the cluster.
pub struct Nodes {
    handle: Arc<Handle>,
}

#[derive(Serialize)]
struct Found {
    name: String,
    node_claim: String,
    node_pool: String,
    node_class: String,
    instance_id: Option<String>,
    instance_type: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    image_id: Option<String>,
    created_at: Option<String>,
    ready: bool,
    drifted: bool,
    drift_reason: Option<String>,
    price: Option<f64>,
}

impl Nodes {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl DataSource for Nodes {
    fn type_name(&self) -> &'static str {
        "karp_nodes"
    }

    fn schema(&self) -> Schema {
        let text = |what: &str| Attribute::string().computed().describe(what);
        let flag = |what: &str| Attribute::bool().computed().describe(what);
        Schema::new(
            "The nodes that the controller made, from the cluster's NodeClaims: where they are, what they are, and whether they have drifted. \
             It is read anew in every plan.",
        )
        .attribute("node_pool", Attribute::string().optional().describe("Only the nodes of this pool."))
        .attribute("price", Attribute::number().computed().describe("The sum of the nodes' estimated prices per hour, in dollars."))
        .attribute(
            "nodes",
            Attribute::nested_list([
                ("name", text("The Node's name; empty until it has joined.")),
                ("node_claim", text("The NodeClaim's name.")),
                ("node_pool", text("Its pool.")),
                ("node_class", text("Its node class.")),
                ("instance_id", text("Its instance.")),
                ("instance_type", text("Its type.")),
                ("zone", text("Its zone.")),
                ("capacity_type", text("`spot`, `on-demand` or `reserved`.")),
                ("image_id", text("The image that it runs.")),
                ("created_at", text("When the NodeClaim was made.")),
                ("ready", flag("Whether it takes pods.")),
                ("drifted", flag("Whether it is no longer what its pool and class say.")),
                ("drift_reason", text("Why it has drifted.")),
                ("price", Attribute::number().computed().describe("The estimated price per hour, in dollars; null for an unknown type.")),
            ])
            .computed()
            .describe("The nodes, by pool and name."),
        )
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let client = self.handle.session().kube().await?;
        let claims = ctx.run(listed::<NodeClaim>(&client, &ListParams::default())).await?;
        let claims = claims.map_err(|error| failure("list the cluster's NodeClaims", error))?;
        let pool = config.get("node_pool").as_str().map(str::to_owned);
        let mut found: Vec<Found> = claims.iter().filter_map(describe).collect();
        found.retain(|one| pool.as_ref().is_none_or(|pool| *pool == one.node_pool));
        found.sort_by(|one, other| (&one.node_pool, &one.node_claim).cmp(&(&other.node_pool, &other.node_claim)));
        let price = found.iter().filter_map(|one| one.price).sum::<f64>();
        Ok(config.with("price", price).with("nodes", tfplugin::to_value(&found)?))
    }
}

/// Describes a NodeClaim; nothing for one of another cloud.
fn describe(claim: &NodeClaim) -> Option<Found> {
    if !claim.spec.node_class_ref.is_ours() {
        return None;
    }
    let status = claim.status.clone().unwrap_or_default();
    let none = BTreeMap::new();
    let own = claim.metadata.labels.as_ref().unwrap_or(&none);
    let label = |key: &str| own.get(key).cloned();
    let drifted: Option<&Condition> = conditions::get(&status.conditions, conditions::DRIFTED);
    let drifted = drifted.filter(|_| conditions::is_true(&status.conditions, conditions::DRIFTED));
    let (kind, zone, bought) = (label(labels::INSTANCE_TYPE), label(labels::ZONE), label(labels::CAPACITY_TYPE));
    Some(Found {
        name: status.node_name.unwrap_or_default(),
        node_claim: claim.name_any(),
        node_pool: label(labels::NODE_POOL).unwrap_or_default(),
        node_class: claim.spec.node_class_ref.name.clone(),
        instance_id: status.provider_id.as_deref().and_then(karp_aws::instances::instance_id).map(str::to_owned),
        price: price(kind.as_deref(), zone.as_deref(), bought.as_deref()),
        instance_type: kind,
        zone,
        capacity_type: bought,
        image_id: status.image_id,
        created_at: claim.metadata.creation_timestamp.as_ref().map(|at| at.0.to_string()),
        ready: conditions::is_true(&status.conditions, conditions::READY),
        drifted: drifted.is_some(),
        drift_reason: drifted.map(|condition| condition.reason.clone()),
    })
}

fn price(kind: Option<&str>, zone: Option<&str>, bought: Option<&str>) -> Option<f64> {
    let on_demand = estimate_on_demand(builtin_type(kind?)?);
    match bought {
        Some(bought) if bought == CapacityType::Spot.as_str() => Some(estimate_spot(on_demand, zone?).dollars()),
        // A reservation is paid for whether it is used or not.
        Some(bought) if bought == CapacityType::OnDemand.as_str() => Some(on_demand.dollars()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(group: &str, conditions: &serde_json::Value) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "default-x", "labels": {
                "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "spot",
                "node.kubernetes.io/instance-type": "m7i.large", "topology.kubernetes.io/zone": "eu-west-1a",
            } },
            "spec": { "nodeClassRef": { "group": group, "kind": "EC2NodeClass", "name": "default" }, "requirements": [] },
            "status": { "nodeName": "ip-1", "providerID": "aws:///eu-west-1a/i-1", "conditions": conditions },
        }))
        .expect("a NodeClaim")
    }

    #[test]
    fn a_claim_tells_what_its_node_is_and_why_it_has_drifted() {
        let drifted = json!([{ "type": "Drifted", "status": "True", "reason": "NodePoolDrifted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        let found = describe(&claim("karpenter.k8s.aws", &drifted)).unwrap();
        assert_eq!((found.name.as_str(), found.instance_id.as_deref()), ("ip-1", Some("i-1")));
        assert_eq!((found.drifted, found.drift_reason.as_deref(), found.ready), (true, Some("NodePoolDrifted"), false));
        let on_demand = price(Some("m7i.large"), None, Some("on-demand")).unwrap();
        assert!(found.price.unwrap() < on_demand && price(Some("m99.large"), None, Some("on-demand")).is_none());
        assert!(describe(&claim("example.com", &json!([]))).is_none(), "another cloud's");
    }
}
