//! `karp_teardown`: at destroy, sees to it that nothing is left of what controllers made for the cluster's nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karp_aws::instances;
use karp_domain::api::NodePool;
use karp_domain::catalogue::region_of;
use karp_domain::orphans::What;
use karp_kube::Error;
use karp_kube::wait::Look;
use kube::Client;
use kube::api::DeleteParams;
use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait,
};

use super::custom_object::{asked, changed, failure};
use super::departure::{Departure, End};
use super::node_claims::Held;
use super::teardown_rehearsal::{self as rehearsal, Rehearsal};
use super::{inherit, node_claims};
use crate::aws::leftovers::{self, Leftovers};
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};

/// A controller that lives takes pools and classes away within seconds once nothing uses them.
const SEE_OFF: Duration = Duration::from_secs(120);

/// The end of a cluster's nodes.
pub struct Teardown {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    cluster_name: Option<String>,
    force: bool,
    dry_run: Option<bool>,
    drain_timeout: String,
    sweep: BTreeSet<String>,
}

impl Model {
    fn kinds(&self) -> BTreeSet<What> {
        self.sweep.iter().filter_map(|name| What::parse(name)).collect()
    }

    fn name(&self) -> &str {
        self.cluster_name.as_deref().unwrap_or_default()
    }

    fn is_dry(&self) -> bool {
        self.dry_run == Some(true)
    }
}

impl Teardown {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    /// Says where the provider block leads where that is another cluster.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let session = self.handle.session();
        let other = session.cluster_name().filter(|other| *other != name)?;
        Some(format!("the provider block names another cluster: {other:?}"))
    }

    /// Gives a client of the cluster; none where EKS says that there is no such cluster any more.
    async fn cluster(&self, ctx: &Context, name: &str) -> Result<Option<Client>, Failure> {
        if let Some(what) = self.elsewhere(name) {
            return Err(Failure::new(Kind::Elsewhere, format!("tear down cluster {name:?}"), what).at("cluster_name"));
        }
        match self.handle.session().kube_of(ctx).await {
            Ok(client) => Ok(Some(client)),
            Err(failure) if failure.kind == Kind::NoCluster => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Looks what a teardown would end.
    async fn rehearse(&self, ctx: &Context, model: &Model) -> Result<Rehearsal, Failure> {
        let client = self.cluster(ctx, model.name()).await?;
        Rehearsal::of(&self.handle.session(), client.as_ref(), model.name(), &model.kinds()).await
    }

    /// Writes into state what a teardown would end, where that is asked for.
    async fn rehearsed(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let model: Model = tfplugin::from_value(&planned)?;
        let would_end = match model.is_dry() {
            true => ctx.run(self.rehearse(ctx, &model)).await??.into_value(),
            false => Value::Null,
        };
        Ok(planned.with("would_end", would_end))
    }

    /// Ends all NodeClaims and waits until they and their Nodes are gone, or until nobody works on them or the patience is over.
    async fn drain(&self, ctx: &Context, name: &str, patience: Duration) -> Result<End, Failure> {
        let doing = format!("drain the nodes of cluster {name:?}");
        let departure = Departure { doing: &doing, patience, grace: Duration::ZERO };
        let look = |client: Client| async move {
            let left = node_claims::left_of_all(&client, node_claims::Ask::All).await?;
            Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.to_string()) })
        };
        departure.watch(ctx, || self.cluster(ctx, name), look).await
    }

    /// Waits for the pools and classes that a controller which lives is about to take away.
    async fn see_off(&self, ctx: &Context, name: &str) -> Result<End, Failure> {
        let doing = format!("see off the pools and classes of cluster {name:?}");
        let departure = Departure { doing: &doing, patience: SEE_OFF, grace: Duration::ZERO };
        let look = |client: Client| async move {
            let left = node_claims::leaving(&client).await?;
            Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.to_string()) })
        };
        departure.watch(ctx, || self.cluster(ctx, name), look).await
    }
}

#[async_trait]
impl Resource for Teardown {
    fn type_name(&self) -> &'static str {
        "karp_teardown"
    }

    fn schema(&self) -> Schema {
        // In the order in which a state has it: a plan in which nothing changes leaves `would_end` as it is.
        let kinds = Value::canonical_set(What::ALL.into_iter().map(|what| Value::from(what.name())));
        Schema::new(
            "Nothing while it exists; at destroy it sees to it that nothing is left of what controllers made for the cluster's nodes, also \
             when no controller runs any more: NodeClaims are drained, then instances, network interfaces, volumes, launch templates and \
             instance profiles with the cluster's tags are ended. Let it depend on the controller and on the network, and let node classes \
             and pools depend on it: it is then destroyed after the pools and before everything that nodes need. It refuses while \
             NodePools exist.",
        )
        .timeouts(Timeouts { delete: Duration::from_secs(60 * 60), ..Timeouts::default() })
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe("The cluster's name."))
        .attribute("cluster_name", inherit::cluster_name_attribute().requires_replace())
        .attribute(
            "force",
            Attribute::bool().default(false).describe("Delete NodePools that still exist, instead of refusing to go on."),
        )
        .attribute(
            "dry_run",
            Attribute::bool().default(false).describe(
                "End nothing: `would_end` says what a destroy would end, and the plan of a destroy shows it. A destroy is refused as long as \
                 that is anything; set it to `false` and apply before.",
            ),
        )
        .attribute("would_end", rehearsal::attribute())
        .attribute(
            "drain_timeout",
            Attribute::string().default("30m").validate(validate::duration()).describe(
                "How long nodes may drain; then, or when no controller has been at work for 90 seconds, their instances are ended as they are.",
            ),
        )
        .attribute(
            "sweep",
            Attribute::set(Type::String)
                .default(kinds)
                .validate(validate::each(validate::one_of(What::ALL.map(What::name))))
                .describe(
                    "What is ended in AWS when the nodes are drained: `instances`, `network_interfaces`, `volumes`, `launch_templates`, \
                     `instance_profiles`; all when left out.",
                ),
        )
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let mut found = inherit::plan_cluster_name(&self.handle.session(), change);
        if change.is_destroy() {
            found.extend(told(&change.prior));
            return found;
        }
        if change.is_update() && change.changed("cluster_name") {
            change.replace("cluster_name");
        }
        let id = change.planned.get("cluster_name").clone();
        if let Some(what) = id.as_str().and_then(|name| self.elsewhere(name)) {
            let fix = "Leave `cluster_name` out, or give this resource a provider block of its cluster.";
            found.error("cluster_name", "Another cluster than the provider block's", format!("{what}. {fix}"));
        }
        change.planned.set("id", id);
        if change.planned.get("dry_run").as_bool() == Some(false) {
            change.planned.set("would_end", Value::Null);
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let id = planned.get("cluster_name").clone();
        // only to note which cluster this is, and where: its nodes alone are ended once
        let name = id.as_str().unwrap_or_default();
        if let Ok(Some(_)) = ctx.run(self.cluster(ctx, name)).await? {
            ctx.run(self.handle.session().keep_place(ctx, name)).await?;
        }
        self.rehearsed(ctx, planned.with("id", id)).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let model: Model = tfplugin::from_value(&state)?;
        let session = self.handle.session();
        if !model.is_dry() && !session.forgets() {
            return Ok(Some(state));
        }
        let look = async {
            if !model.is_dry() {
                // only whether it is the same cluster: one that is gone leaves its instances to this
                return match self.cluster(ctx, model.name()).await {
                    Err(failure) if failure.kind != Kind::Elsewhere => Err(failure),
                    _ => Ok(Some(state.clone())),
                };
            }
            let would_end = self.rehearse(ctx, &model).await?.into_value();
            Ok(Some(state.clone().with("would_end", would_end)))
        };
        let needs = [Part::Aws, Part::Kubernetes, Part::ClusterName];
        session.refresh(ctx, &needs, &state, look).await
    }

    async fn update(&self, ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.rehearsed(ctx, planned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let model: Model = tfplugin::from_value(&prior)?;
        let name = model.name();
        let client = match self.cluster(ctx, name).await {
            Err(failure) if failure.kind == Kind::OtherCluster && self.handle.session().forgets() => {
                ctx.warn(Diagnostic::warning(
                    "Forgotten with its cluster",
                    format!(
                        "{}\n\nWhat has the tags of cluster {name:?} may be the other one's by now: nothing of it was ended.",
                        failure.message
                    ),
                ));
                return Ok(());
            }
            found => found?,
        };
        let doing = format!("tear down the nodes of cluster {name:?}");
        if client.is_none() {
            ctx.run(self.handle.session().check_place(ctx, &doing)).await??;
        }
        if model.is_dry() {
            return Ok(refuse(&model, &ctx.run(self.rehearse(ctx, &model)).await??)?);
        }
        let kinds = model.kinds();
        if let Some(client) = &client {
            ctx.run(Box::pin(self.check_cluster(ctx, client, name, &kinds))).await??;
            end_pools(ctx, client, name, model.force).await?;
        }
        let patience = validate::parse_duration(&model.drain_timeout).unwrap_or_default();
        let drained = self.drain(ctx, name, patience).await?;
        if drained != End::Gone && !kinds.contains(&What::Instances) {
            // Nothing else may go while the nodes may still need it.
            let fix = "Start the controller again, or add `instances` to `sweep`; then run this again.";
            let stays = Failure::new(Kind::InUse, doing, "the nodes did not drain, and may not be ended");
            return Err(stays.with_fix(fix).into());
        }
        let swept = match kinds.is_empty() {
            true => Leftovers::default(),
            false => leftovers::sweep(self.handle.session().aws().await?, ctx, name, &kinds).await?,
        };
        if client.is_none() && swept.is_empty() {
            let region = self.handle.session().region().await.unwrap_or_default();
            ctx.warn(nothing_there(name, &region, &kinds));
        }
        let why = match drained {
            End::Gone => "No controller took these away",
            End::Late(_) => "These did not drain within `drain_timeout`: pods that may not be evicted keep their node",
            End::Abandoned(_) => "No controller was at work to drain these",
        };
        let released = self.clear(ctx, name, &drained).await;
        // what was ended is told, also where the rest was broken off
        let left = released.as_ref().ok().and_then(Option::as_ref);
        if !swept.is_empty() || left.is_some() {
            let nodes = left.map_or_else(String::new, |left| format!("\n\n{why}, so they were let go of: {left}."));
            let detail = format!("Ended in AWS: {swept}.{nodes}");
            ctx.warn(Diagnostic::warning(format!("Something was left of the nodes of {name}"), detail));
        }
        Ok(released.map(drop)?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let all = Value::List(What::ALL.into_iter().map(|what| Value::from(what.name())).collect());
        Ok(Value::object([("id", id), ("cluster_name", id), ("drain_timeout", "30m")])
            .with("force", false)
            .with("dry_run", false)
            .with("sweep", all))
    }
}

impl Teardown {
    /// Sees to what is left in the cluster, and says what was let go of.
    async fn clear(&self, ctx: &Context, name: &str, drained: &End) -> Result<Option<String>, Failure> {
        match drained {
            End::Gone if self.see_off(ctx, name).await? == End::Gone => Ok(None),
            _ => self.release(ctx, name).await,
        }
    }

    /// Takes away what waits for a controller that does not do it; the instances have just been ended.
    async fn release(&self, ctx: &Context, name: &str) -> Result<Option<String>, Failure> {
        let doing = format!("let go of the nodes of cluster {name:?}");
        let Some(client) = self.cluster(ctx, name).await? else { return Ok(None) };
        Box::pin(self.check_ended(ctx, &doing, &client)).await?;
        let release = async { node_claims::release(&client).await.map_err(|error| failure(&doing, error)) };
        changed(ctx, &doing, release).await
    }
}

impl Teardown {
    /// Refuses a provider block that leads to a cluster and to what is not that cluster's in AWS.
    async fn check_cluster(
        &self,
        ctx: &Context,
        client: &Client,
        name: &str,
        kinds: &BTreeSet<What>,
    ) -> Result<(), Failure> {
        let doing = format!("tear down the nodes of cluster {name:?}");
        self.held(ctx, &doing, client).await?;
        let session = self.handle.session();
        if session.model().kubernetes.is_none() || !kinds.contains(&What::Instances) {
            return Ok(());
        }
        let live = leftovers::find(session.aws().await?, name, &BTreeSet::from([What::Instances])).await?;
        if live.is_empty() { Ok(()) } else { session.check_eks(name, &doing).await }
    }

    /// Lists the instances that the cluster's NodeClaims and Nodes stand for, and refuses those of another region.
    async fn held(&self, ctx: &Context, doing: &str, client: &Client) -> Result<Vec<Held>, Failure> {
        let held = asked(ctx, doing, node_claims::instances(client)).await?;
        if held.is_empty() {
            return Ok(held);
        }
        let Some(actual) = self.handle.session().region().await else { return Ok(held) };
        let mut regions = held.iter().filter_map(|one| Some((one, region_of(&one.zone)?)));
        if let Some((Held { by, id, .. }, lives)) = regions.find(|(_, lives)| *lives != actual) {
            let what = format!(
                "instance {id} of {by} lives in region {lives:?}, and the provider is configured for {actual:?}"
            );
            return Err(Failure::new(Kind::Elsewhere, doing, what).with_fix(
                "Check `region`, `cluster_name` and `kubernetes` of the provider block: they are not of one cluster.",
            ));
        }
        Ok(held)
    }

    /// Refuses to let go of NodeClaims and Nodes whose instances live: nothing would know of these any more.
    async fn check_ended(&self, ctx: &Context, doing: &str, client: &Client) -> Result<(), Failure> {
        let held = self.held(ctx, doing, client).await?;
        if held.is_empty() {
            return Ok(());
        }
        let ids: BTreeSet<String> = held.iter().map(|one| one.id.clone()).collect();
        let found = instances::describe(self.handle.session().aws().await?.clients(), &Vec::from_iter(ids)).await;
        let found = found.map_err(|e| Failure::from_aws("see whether the instances of NodeClaims have ended", e))?;
        let lives = |one: &&Held| found.iter().any(|instance| instance.id == one.id && !instance.state.is_ending());
        let live: Vec<String> = held.iter().filter(lives).map(|one| format!("{} ({})", one.by, one.id)).collect();
        if live.is_empty() {
            return Ok(());
        }
        let what = format!("instances live that have no tags of this cluster: those of {}", live.join(", "));
        Err(Failure::new(Kind::InUse, doing, what).with_fix(
            "Check that `cluster_name` of the provider block is the one that the controller runs with; or end these instances. Then run this \
             again.",
        ))
    }
}

/// Tells that there was neither a cluster nor anything to end.
fn nothing_there(name: &str, region: &str, kinds: &BTreeSet<What>) -> Diagnostic {
    let why = if kinds.is_empty() { "`sweep` is empty" } else { "nothing with its tags was found there" };
    Diagnostic::warning(
        format!("EKS has no cluster {name:?} in {region}"),
        format!(
            "It has none, and {why}, so nothing was ended.\n\nIf that is a surprise, check `region` and the account (`profile`, `assume_role`) \
             of the provider block: nodes that live elsewhere run on."
        ),
    )
}

/// Tells in the plan of a destroy what a dry run has found.
fn told(prior: &Value) -> Option<Diagnostic> {
    let found = prior.get("would_end");
    let counted = |(kind, ids): (&String, &Value)| {
        let ids: Vec<&str> = ids.as_list().iter().filter_map(Value::as_str).collect();
        (!ids.is_empty()).then(|| format!("{}: {}", kind.replace('_', " "), ids.join(", ")))
    };
    let all: Vec<String> = found.as_map()?.iter().filter_map(counted).collect();
    let name = prior.get("cluster_name").as_str().unwrap_or_default();
    Some(match all.is_empty() {
        true => Diagnostic::warning(
            format!("Nothing is left of the nodes of {name}"),
            "A dry run has found nothing to end.",
        ),
        false => Diagnostic::warning(
            format!("A destroy would end what is left of the nodes of {name}"),
            format!(
                "{}.\n\nThis is a dry run, and a destroy will be refused: set `dry_run = false` and apply first.",
                all.join("\n")
            ),
        ),
    })
}

/// Refuses to be destroyed by a dry run that found something.
fn refuse(model: &Model, found: &Rehearsal) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    let doing = format!("tear down the nodes of cluster {:?}", model.name());
    let what = format!("this is a dry run, so nothing was ended; there are {found}");
    Err(Failure::new(Kind::InUse, doing, what)
        .at("dry_run")
        .with_fix("Set `dry_run = false` and apply that, then destroy."))
}

/// Refuses while there are pools, which would make new nodes; or deletes them.
async fn end_pools(ctx: &Context, client: &Client, name: &str, force: bool) -> Result<(), Failure> {
    let doing = format!("tear down the nodes of cluster {name:?}");
    let pools = asked(ctx, &doing, node_claims::pools(client)).await?;
    if pools.is_empty() {
        return Ok(());
    }
    if !force {
        let what = format!("{} would make new nodes", node_claims::counted("NodePool", &pools));
        return Err(Failure::new(Kind::InUse, doing, what).with_fix(
            "Destroy the pools first: let every karp_node_pool depend on this resource. Or set `force = true` to have them deleted here.",
        ));
    }
    let api = node_claims::raw::<NodePool>(client);
    for pool in pools {
        let doing = format!("delete NodePool {pool:?}");
        let delete = async {
            match api.delete(&pool, &DeleteParams::background()).await.map_err(Error::from) {
                Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(failure(&doing, error)),
            }
        };
        changed(ctx, &doing, delete).await?;
    }
    Ok(())
}
