//! What a plan of a node pool foresees of its nodes.

use jiff::Timestamp;
use karp_domain::api::{self, labels};
use karp_domain::cluster::Pool;
use kube::Client;
use tfplugin::{Context, Diagnostic, PlannedChange};

use super::{NodePool, offer_of};
use crate::preview::{self, Ending, Impact, Preview};
use crate::report::Failure;
use crate::resources::custom_object::{failure, name_of, seen};
use crate::resources::node_pool_drain::let_go;

impl NodePool {
    /// Tells what a change will do; nothing at destroy, and nothing of nodes while the cluster is not known.
    pub(super) async fn preview(&self, ctx: &Context, change: &PlannedChange) -> Option<Diagnostic> {
        let session = self.0.session();
        if session.model().offline_plan || change.is_destroy() || (change.is_update() && !change.has_changes()) {
            return None;
        }
        let name = name_of(change);
        let after = self.0.typed::<api::NodePool>(&change.planned);
        if change.is_update() && !change.requires_replace.is_empty() {
            return Some(self.replacement(ctx, change, after.as_ref()).await);
        }
        let Some(after) = after else { return self.0.not_known(change) };
        let new = Preview { after: offer_of(&after)?, is_static: is_static(&after), ..Preview::default() };
        if self.0.adopts(change) {
            return Some(self.adoption(ctx, change, new).await?.warning(name));
        }
        let Some(before) = change.is_update().then(|| self.0.typed::<api::NodePool>(&change.prior)).flatten() else {
            return Some(new.warning(name));
        };
        if before.spec == after.spec {
            return None;
        }
        let look = async {
            let client = session.kube_ahead(ctx).await?;
            glance(&client, &before, &after).await
        };
        let (impact, unseen) = match seen(look).await {
            Some(Ok(impact)) => (Some(impact), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        Some(Preview { before: offer_of(&before), impact, unseen, ..new }.warning(name))
    }

    /// Tells what goes with a pool that another takes the place of.
    async fn replacement(&self, ctx: &Context, change: &PlannedChange, after: Option<&api::NodePool>) -> Diagnostic {
        let ending = match change.prior.get("drain_on_destroy").as_bool() {
            Some(false) => Ending::Hurried,
            _ => Ending::Drained,
        };
        let pool = self.0.typed::<api::NodePool>(&change.prior).and_then(|pool| Pool::from_kube(&pool).ok());
        let pool = pool.filter(|_| ending == Ending::Drained);
        let pace = |total| Some(let_go(&pool?.budgets, total, Timestamp::now()));
        let replaced = self.0.replaced(ctx, change, labels::NODE_POOL, ending, pace).await;
        replaced.warning(name_of(change), after.and_then(offer_of).as_ref())
    }

    /// Looks at the pool that a creation takes over, and at its nodes, as an update does; a `new` one is made where none is there.
    async fn adoption(&self, ctx: &Context, change: &PlannedChange, new: Preview) -> Option<Preview> {
        let look = async {
            let Some((client, live)) = self.0.adopted(ctx, &change.planned).await? else {
                return Ok::<_, Failure>(Some(new.clone()));
            };
            let [before, after] = self.0.taken_over::<api::NodePool>(&live, &change.planned)?;
            if before.spec == after.spec {
                return Ok(None);
            }
            let impact = Some(glance(&client, &before, &after).await?);
            let (before, offer) = (offer_of(&before), offer_of(&after).unwrap_or_default());
            Ok(Some(Preview { before, after: offer, impact, unseen: None, is_static: is_static(&after) }))
        };
        let looked = seen(look).await;
        match looked {
            Some(Ok(preview)) => preview,
            Some(Err(why)) => Some(Preview { unseen: Some(why), ..new }),
            None => Some(new),
        }
    }
}

fn is_static(pool: &api::NodePool) -> bool {
    pool.spec.replicas.is_some()
}

async fn glance(client: &Client, before: &api::NodePool, after: &api::NodePool) -> Result<Impact, Failure> {
    preview::glance(client, before, after).await.map_err(|error| failure("look at the pool's nodes", error))
}
