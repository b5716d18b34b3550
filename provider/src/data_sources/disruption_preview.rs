//! `karp_disruption_preview`: what would become of the nodes of a pool or a class, as data.

use std::fmt::Debug;
use std::sync::Arc;

use karp_domain::api::{Ec2NodeClass, NodePool};
use karp_domain::catalogue::Price;
use kube::api::Api;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tfplugin::{Attribute, Context, DataSource, Diagnostic, Diagnostics, Schema, Value, async_trait};

use crate::manifests::spec::Attributes;
use crate::preview::{self, ClassPreview, Impact, Offer};
use crate::provider::Handle;
use crate::report::Failure;
use crate::resources::node_pool::offer_of;
use crate::resources::{
    failure, node_class, node_class_attributes, node_pool, node_pool_disruption, node_pool_template,
};

/// A preview of a pool's or a class's change.
pub struct DisruptionPreview {
    handle: Arc<Handle>,
}

impl DisruptionPreview {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn look(&self, after: &NodePool) -> Result<(Option<NodePool>, Impact), Failure> {
        let client = self.handle.session().kube().await?;
        let name = after.metadata.name.as_deref().unwrap_or_default();
        let Some(before) = find::<NodePool>(&client, name).await? else { return Ok((None, Impact::default())) };
        let impact = preview::look(&client, &before, &as_large(after, &before)).await;
        Ok((Some(before), impact.map_err(|error| failure(format!("look at the nodes of NodePool {name:?}"), error))?))
    }

    /// Looks at a class; one that does not exist yet is compared with itself.
    async fn look_at_class(&self, after: &Ec2NodeClass) -> Result<ClassPreview, Failure> {
        let session = self.handle.session();
        let client = session.kube().await?;
        let name = after.metadata.name.as_deref().unwrap_or_default();
        let before = find::<Ec2NodeClass>(&client, name).await?;
        let seen = preview::look_at_class(&session, &client, [before.as_ref().unwrap_or(after), after]).await;
        let seen = seen.map_err(|error| failure(format!("look at the nodes of EC2NodeClass {name:?}"), error))?;
        Ok(ClassPreview { before: seen.before.filter(|_| before.is_some()), ..seen })
    }

    async fn of_pool(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let unreadable =
            || Diagnostic::error("The pool cannot be read", "Check `template` and `disruption`.").at("template");
        let after = node_pool::typed(&spec(), &config).ok_or_else(unreadable)?;
        let offer = offer_of(&after).ok_or_else(unreadable)?;
        let (before, impact) = ctx.run(self.look(&after)).await??;
        answer(config, before.as_ref().and_then(offer_of), &offer, &impact)
    }

    async fn of_class(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let class = config.get("node_class").clone().with("name", config.get("name").clone());
        let unreadable = || Diagnostic::error("The class cannot be read", "Check `node_class`.").at("node_class");
        let after = node_class::typed(&class_spec(), &class).ok_or_else(unreadable)?;
        let seen = ctx.run(self.look_at_class(&after)).await??;
        answer(config, seen.before, &seen.after, &seen.impact)
    }
}

#[async_trait]
impl DataSource for DisruptionPreview {
    fn type_name(&self) -> &'static str {
        "karp_disruption_preview"
    }

    fn schema(&self) -> Schema {
        let number = |what: &str| Attribute::number().computed().describe(what);
        let text = |what: &str| Attribute::string().computed().describe(what);
        Schema::new(
            "What would become of the nodes of a pool or a node class if it were as it is written here: the warning that a plan shows for a \
             changed `karp_node_pool` or `karp_node_class`, as data. A pool keeps the `limits` and `replicas` that it has in the cluster. Nodes of \
             static pools are renewed only while the controller's feature gate StaticCapacity is on. Prices are karp's estimates for us-east-1, \
             without NodeOverlays.",
        )
        .attribute(
            "name",
            Attribute::string().required().describe(
                "The name of the NodePool (with `template`) or the EC2NodeClass (with `node_class`); one that does not exist yet has no nodes.",
            ),
        )
        .attribute(
            "template",
            node_pool_template().optional().describe("What the pool's nodes should look like, as in `karp_node_pool`. This or `node_class`."),
        )
        .attribute(
            "disruption",
            node_pool_disruption().optional().describe("When the pool's nodes may be disrupted, as in `karp_node_pool`."),
        )
        .attribute(
            "node_class",
            Attribute::nested_single(node_class_attributes())
                .optional()
                .describe("What the class should be, as in `karp_node_class`; all pools that use it are looked at. This or `template`."),
        )
        .attribute("types_before", number("How many instance types may be launched now; null for a pool that does not exist, and a class that no pool uses."))
        .attribute("types_after", number("How many may be launched then."))
        .attribute("cheapest_price", number("The price per hour of the cheapest of them, in dollars."))
        .attribute("typical_price", number("The price per hour of the middle one, when they are ordered by price."))
        .attribute("nodes", number("How many nodes there are."))
        .attribute("at_once", number("How many may be replaced at the same time, under the budgets that hold now, and the `limits.nodes` of static pools."))
        .attribute("waves", number("How many rounds it takes to replace all that drift; null where these allow none now."))
        .attribute(
            "drifting",
            Attribute::nested_list([
                ("name", text("The Node's name.")),
                ("reason", text("Why it drifts.")),
                ("blocked_by", text("What forbids to disrupt it now.")),
            ])
            .computed()
            .describe("The nodes that drift. Where a class's selectors are changed and what they find is not known, all that may."),
        )
        .attribute(
            "timeline",
            Attribute::nested_list([
                ("at", text("From when on, as `2026-01-31T12:00:00Z`.")),
                ("at_once", number("How many may be replaced at the same time then.")),
            ])
            .computed()
            .describe("Each change of `at_once` that the schedules of the budgets bring within seven days, in order."),
        )
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let (pool, class) = (config.get("template"), config.get("node_class"));
        let mut found = Diagnostics::new();
        if pool.is_null() && class.is_null() {
            found.error("template", "Nothing to preview", "Write `template` for a pool, or `node_class` for a class.");
        }
        if !pool.is_null() && !class.is_null() {
            let detail =
                "Write `template` for a pool, or `node_class` for a class: one data source previews one of them.";
            found.error("node_class", "Two things to preview", detail);
        }
        if !class.is_null() && !config.get("disruption").is_null() {
            let detail = "A class has no budgets: those of the pools that use it hold, as they are in the cluster.";
            found.error("disruption", "A class has no disruption", detail);
        }
        found
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        match config.get("node_class").is_null() {
            true => self.of_pool(ctx, config).await,
            false => self.of_class(ctx, config).await,
        }
    }
}

fn spec() -> Attributes {
    [("template".to_owned(), node_pool_template()), ("disruption".to_owned(), node_pool_disruption())].into()
}

fn class_spec() -> Attributes {
    node_class_attributes().into_iter().map(|(name, attribute)| (name.to_owned(), attribute)).collect()
}

/// Gives a pool the limits and the number of replicas that it has in the cluster: what is previewed does not say them.
fn as_large(after: &NodePool, live: &NodePool) -> NodePool {
    let mut after = after.clone();
    after.spec.limits = live.spec.limits.clone();
    after.spec.replicas = live.spec.replicas;
    after
}

async fn find<K>(client: &Client, name: &str) -> Result<Option<K>, Failure>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match Api::<K>::all(client.clone()).get(name).await.map_err(karp_kube::Error::from) {
        Ok(found) => Ok(Some(found)),
        Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => Ok(None),
        Err(error) => Err(failure(format!("read {} {name:?}", K::kind(&())), error)),
    }
}

/// Adds to a configuration what is seen of the change: what may be launched `before` and `after` it, and what becomes of the nodes.
pub fn answer(config: Value, before: Option<Offer>, after: &Offer, impact: &Impact) -> Result<Value, Diagnostics> {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let price = |price: Option<Price>| price.map_or(Value::Null, |price| Value::from(price.dollars()));
    Ok(config
        .with("types_before", before.map_or(Value::Null, |before| Value::from(count(before.types))))
        .with("types_after", count(after.types))
        .with("cheapest_price", price(after.cheapest))
        .with("typical_price", price(after.typical))
        .with("nodes", i64::from(impact.total))
        .with("at_once", i64::from(impact.at_once))
        .with("waves", impact.waves.map_or(Value::Null, |waves| Value::from(i64::from(waves))))
        .with("drifting", tfplugin::to_value(&impact.drifting)?)
        .with("timeline", tfplugin::to_value(&impact.timeline)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_is_as_large_as_it_is_in_the_cluster() {
        let pool = |team: &str, size: (Option<u32>, Option<&str>)| -> NodePool {
            let (replicas, nodes) = size;
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "a" },
                "spec": {
                    "template": { "metadata": { "labels": { "team": team } }, "spec": {
                        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a" }, "requirements": [],
                    } },
                    "replicas": replicas, "limits": nodes.map(|nodes| json!({ "nodes": nodes })),
                },
            }))
            .expect("a pool")
        };
        let (fixed, free) = ((Some(3), Some("3")), (None, None));
        assert_eq!(as_large(&pool("b", free), &pool("a", fixed)), pool("b", fixed));
        assert_eq!(as_large(&pool("b", free), &pool("a", free)), pool("b", free));
    }
}
