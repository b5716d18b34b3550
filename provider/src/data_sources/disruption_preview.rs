//! `karp_disruption_preview`: what would become of a pool's nodes, as data.

use std::sync::Arc;

use karp_domain::api::NodePool;
use karp_domain::catalogue::Price;
use kube::Client;
use kube::api::Api;
use tfplugin::{Attribute, Context, DataSource, Diagnostic, Diagnostics, Schema, Value, async_trait};

use crate::manifests::spec::Attributes;
use crate::preview::{self, Impact, Offer};
use crate::provider::Handle;
use crate::report::Failure;
use crate::resources::node_pool::{offer_of, typed};
use crate::resources::{failure, node_pool_disruption, node_pool_template};

/// A preview of a pool's change.
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
        let Some(before) = find(&client, name).await? else { return Ok((None, Impact::default())) };
        let impact = preview::look(&client, &before, after).await;
        Ok((Some(before), impact.map_err(|error| failure(format!("look at the nodes of NodePool {name:?}"), error))?))
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
            "What would become of a pool's nodes if the pool were as it is written here: the warning that a plan shows for a changed \
             `karp_node_pool`, as data. Prices are karp's estimates for us-east-1.",
        )
        .attribute("name", Attribute::string().required().describe("The NodePool's name; one that does not exist yet has no nodes."))
        .attribute("template", node_pool_template().required().describe("What its nodes should look like, as in `karp_node_pool`."))
        .attribute("disruption", node_pool_disruption().optional().describe("When its nodes may be disrupted, as in `karp_node_pool`."))
        .attribute("types_before", number("How many instance types it may launch now; null for a pool that does not exist."))
        .attribute("types_after", number("How many it may launch then."))
        .attribute("cheapest_price", number("The price per hour of the cheapest of them, in dollars."))
        .attribute("typical_price", number("The price per hour of the middle one, when they are ordered by price."))
        .attribute("nodes", number("How many nodes it has."))
        .attribute("at_once", number("How many may be replaced at the same time, under the budgets that hold now."))
        .attribute("waves", number("How many rounds it takes to replace all that drift; null where the budgets allow none now."))
        .attribute(
            "drifting",
            Attribute::nested_list([
                ("name", text("The Node's name.")),
                ("reason", text("Why it drifts.")),
                ("blocked_by", text("What forbids to disrupt it now.")),
            ])
            .computed()
            .describe("The nodes that will be replaced."),
        )
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let unreadable =
            || Diagnostic::error("The pool cannot be read", "Check `template` and `disruption`.").at("template");
        let after = typed(&spec(), &config).ok_or_else(unreadable)?;
        let offer = offer_of(&after).ok_or_else(unreadable)?;
        let (before, impact) = ctx.run(self.look(&after)).await??;
        answer(config, before.as_ref().and_then(offer_of), &offer, &impact)
    }
}

fn spec() -> Attributes {
    [("template".to_owned(), node_pool_template()), ("disruption".to_owned(), node_pool_disruption())].into()
}

async fn find(client: &Client, name: &str) -> Result<Option<NodePool>, Failure> {
    match Api::<NodePool>::all(client.clone()).get(name).await.map_err(karp_kube::Error::from) {
        Ok(pool) => Ok(Some(pool)),
        Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => Ok(None),
        Err(error) => Err(failure(format!("read NodePool {name:?}"), error)),
    }
}

fn answer(config: Value, before: Option<Offer>, after: &Offer, impact: &Impact) -> Result<Value, Diagnostics> {
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
        .with("drifting", tfplugin::to_value(&impact.drifting)?))
}
