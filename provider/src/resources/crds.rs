//! `karp_crds`: the definitions of NodePool, NodeClaim and EC2NodeClass.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karp_domain::api;
use karp_kube::apply::{self, Force, Manager};
use karp_kube::wait::{self, Until};
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use serde_json::Value as Json;
use tfplugin::{Attribute, Context, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait};

use super::custom_object::{failure, needs, waited};
use crate::manifests::{FIELD_MANAGER, contains, digest};
use crate::provider::Handle;
use crate::report::Failure;

const ID: &str = "crds";

/// The CRDs.
pub struct Crds {
    handle: Arc<Handle>,
}

impl Crds {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn apply(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let client = self.handle.session().kube().await?;
        // A definition is one whole: whoever made it before (Helm, kubectl), its fields are taken over.
        let manager = Manager { name: FIELD_MANAGER, force: Force::Yes };
        let state = planned.with("id", ID).with("digest", digest(&WANTED)).with("names", names());
        for definition in WANTED.iter() {
            let doing = format!("apply CRD {}", name_of(definition));
            let applied = ctx.run(apply::json(&client, manager, "customresourcedefinitions", definition)).await?;
            applied.map_err(|error| failure(doing, error))?;
            ctx.save(state.clone());
        }
        for definition in WANTED.iter() {
            let name = name_of(definition);
            let limit = Until::after(ctx.remaining().saturating_sub(Duration::from_secs(2)), ctx.stop());
            let established = wait::established(&client, &name, &limit).await;
            established.map_err(|error| waited(&format!("wait for CRD {name}"), error))?;
        }
        Ok(state)
    }
}

/// The definitions as they are applied: made once, since their schemas are big.
static WANTED: LazyLock<Vec<Json>> =
    LazyLock::new(|| api::crds().iter().filter_map(|crd| serde_json::to_value(crd).ok()).collect());

fn name_of(definition: &Json) -> String {
    definition["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = WANTED.iter().map(name_of).collect();
    names.sort();
    names
}

/// Gives the digest of what the cluster has: ours where nothing differs, none where no definition is left.
async fn live_digest(client: &Client) -> Result<Option<String>, Failure> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let (mut found, mut same) = (Vec::new(), true);
    for definition in WANTED.iter() {
        let name = name_of(definition);
        let live = api.get_opt(&name).await.map_err(|error| failure(format!("read CRD {name}"), error.into()))?;
        let live = live.filter(|live| live.metadata.deletion_timestamp.is_none());
        let live = live.and_then(|live| serde_json::to_value(live).ok()).map(|live| live["spec"].clone());
        same &= live.as_ref().is_some_and(|live| contains(live, &definition["spec"]));
        found.extend(live);
    }
    let gone = found.is_empty();
    Ok((!gone).then(|| if same { digest(&WANTED) } else { digest(&found) }))
}

#[async_trait]
impl Resource for Crds {
    fn type_name(&self) -> &'static str {
        "karp_crds"
    }

    fn schema(&self) -> Schema {
        Schema::new(
            "The custom resource definitions NodePool, NodeClaim, EC2NodeClass, NodeOverlay and CapacityBuffer, as this version of the provider \
             has them. Those that Helm or kubectl made are taken over.",
        )
        .timeouts(Timeouts::default())
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe("Always `crds`."))
        .attribute(
            "keep_on_destroy",
            Attribute::bool().default(true).describe(
                "Leave the definitions at destroy. With `false` they are deleted, and with them every NodePool, NodeClaim and \
                 EC2NodeClass of the cluster.",
            ),
        )
        .attribute(
            "names",
            Attribute::list(Type::String).computed().use_state_for_unknown().describe("The names of the definitions."),
        )
        .attribute(
            "digest",
            Attribute::string().computed().describe("A digest of the definitions: a difference means that they will be brought up to date."),
        )
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        if !change.is_destroy() {
            change.planned.set("id", ID);
            change.planned.set("names", names());
            change.planned.set("digest", digest(&WANTED));
        }
        Diagnostics::new()
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.apply(ctx, planned).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let look = async {
            let client = session.kube().await?;
            Ok(live_digest(&client)
                .await?
                .map(|digest| state.clone().with("id", ID).with("names", names()).with("digest", digest)))
        };
        session.refresh(ctx, needs(&session), &state, look).await
    }

    async fn update(&self, ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.apply(ctx, planned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        if prior.get("keep_on_destroy").as_bool() != Some(false) {
            return Ok(());
        }
        let client = self.handle.session().kube().await?;
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        let mut going = Vec::new();
        for name in names() {
            let doing = format!("delete CRD {name}");
            let Some(live) = api.get_opt(&name).await.map_err(|error| failure(&doing, error.into()))? else { continue };
            match api.delete(&name, &DeleteParams::default()).await.map_err(karp_kube::Error::from) {
                Ok(_) => going.push((name, live.uid())),
                Err(karp_kube::Error::NotFound { .. }) => {}
                Err(error) => return Err(failure(doing, error).into()),
            }
        }
        for (name, uid) in going {
            let limit = Until::after(ctx.remaining().saturating_sub(Duration::from_secs(2)), ctx.stop());
            let gone = wait::gone(&api, &name, uid.as_deref(), &limit).await;
            gone.map_err(|error| {
                waited(&format!("delete CRD {name}"), error).with_fix(
                    "Its objects go first, and one with a finalizer waits for the controller: look at them with `kubectl get \
                     nodepools,nodeclaims,ec2nodeclasses`, then run this again.",
                )
            })?;
        }
        Ok(())
    }

    async fn import(&self, _ctx: &Context, _id: &str) -> Result<Value, Diagnostics> {
        Ok(Value::object([("id", ID)]).with("keep_on_destroy", true))
    }
}
