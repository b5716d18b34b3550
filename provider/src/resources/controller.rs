//! `karp_controller`: the controller's namespace, account, rights, Deployment, budget and Service.

mod left;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use karp_kube::apply::{self, Force, Manager};
use kube::api::{Api, DeleteParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::Value as Json;
use tfplugin::{Context, Diagnostic, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Value, async_trait};

use super::controller_import::{self, Live};
use super::custom_object::{asked, changed, failure, gone, needs, within};
use super::{controller_schema, controller_wait, identity, inherit, node_claims};
use crate::aws::Origin;
use crate::manifests::controller::{MANAGED_BY, NAME, Object, SERVICE_MONITORS, Settings, version};
use crate::manifests::{FIELD_MANAGER, contains, digest, owned};
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::Session;

/// Attributes that the objects do not depend on.
const ASIDE: [&str; 7] = ["id", "manifest_digest", "ready_replicas", "timeouts", "force", "version", "wait"];
/// As whom the cluster's own controllers write, of a Deployment its revision.
const CLUSTERS_OWN: &str = "kube-controller-manager";
/// What is kept of the time limit to report and to store state.
const RESERVE: Duration = Duration::from_secs(5);

/// The controller.
pub struct Controller {
    handle: Arc<Handle>,
}

impl Controller {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    /// Applies the controller's objects. What they were `before` and are planned to be no more goes, whoever wrote it (decision 0020); so do those
    /// of them that are not planned. A change that fails leaves the state as it was: one that knew of the plan alone would forget what has yet to go.
    async fn apply(&self, ctx: &Context, planned: Value, before: Option<&Settings>) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let client = session.kube_of(ctx).await?;
        let settings: Settings = tfplugin::from_value(&planned)?;
        let state = planned
            .clone()
            .with("id", format!("{}/{NAME}", settings.namespace()))
            .with("manifest_digest", digest(&jsons(&settings)));
        // What a creation leaves open, the next refresh counts.
        let ready = planned.get("ready_replicas");
        let state = if ready.is_known() { state } else { state.with("ready_replicas", Value::Null) };
        let force = if planned.get("force_conflicts").as_bool() == Some(true) { Force::Yes } else { Force::No };
        let manager = Manager { name: FIELD_MANAGER, force };
        let objects = settings.objects();
        // What core finds in the state of a failed creation it destroys next time: what others made must not go with it (decision 0005).
        let is_made = before.is_none() && !ctx.run(has_others(&client, &objects)).await??;
        let before = before.map(Settings::objects).unwrap_or_default();
        let kept: Vec<String> = jsons(&settings).iter().map(called).collect();
        // A stop amid these few calls does not keep the rest: half a controller would be destroyed and made again, which is refused while
        // nodes live.
        let all = async {
            if ensure_namespace(&client, &settings).await? == Origin::Made && is_made {
                ctx.save(state.clone());
            }
            for object in &objects {
                let claimed = apply::claim(&client, manager, object.plural, known(&before, object), &object.json);
                claimed.await.map_err(|error| refused(object, error))?;
            }
            for object in &objects {
                let applied = apply::json(&client, manager, object.plural, &object.json);
                applied.await.map_err(|error| refused(object, error))?;
                if is_made {
                    ctx.save(state.clone());
                }
            }
            for object in before.iter().filter(|object| !kept.contains(&called(&object.json))) {
                delete(&client, object).await?;
            }
            ctx.save(state.clone());
            Ok::<(), Diagnostics>(())
        };
        ctx.carry_out(all).await??;
        if planned.get("wait").as_bool() != Some(false) {
            controller_wait::at_work(ctx, &session, &settings).await;
        }
        Ok(state)
    }
}

#[async_trait]
impl Resource for Controller {
    fn type_name(&self) -> &'static str {
        "karp_controller"
    }

    fn schema(&self) -> Schema {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let schema = Schema::new(
            "The controller in the cluster: namespace, service account, RBAC, Deployment, PodDisruptionBudget and Service, without Helm. \
             It cannot be destroyed while nodes live that only it can end.",
        )
        .timeouts(Timeouts { create: minutes(10), update: minutes(10), delete: minutes(10), ..Timeouts::default() })
        .identity(identity::of_controller());
        controller_schema::operation(controller_schema::surroundings(controller_schema::workload(
            controller_schema::identity(inherit::cluster_name(schema)),
        )))
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        controller_schema::check(config)
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        if change.is_destroy() {
            return self.warn_of_claims(ctx, &change.prior).await;
        }
        if change.is_update() && change.prior.get("image").is_null() {
            return inherit::unread(change);
        }
        let found = inherit::plan_cluster_name(&session, change);
        let namespace = change.planned.get("namespace").as_str().map(|namespace| format!("{namespace}/{NAME}"));
        change.planned.set("id", namespace.map_or(Value::Unknown, Value::from));
        let tag = match change.planned.get("image") {
            Value::Unknown => Value::Unknown,
            image => Value::from(image.as_str().and_then(version)),
        };
        change.planned.set("version", tag);
        let inputs = change.planned.as_map().into_iter().flatten();
        let known = inputs.filter(|(name, _)| !ASIDE.contains(&name.as_str())).all(|(_, value)| value.whole_known());
        let digest = match tfplugin::from_value::<Settings>(&change.planned) {
            Ok(settings) if known => Value::from(digest(&jsons(&settings))),
            _ => Value::Unknown,
        };
        change.planned.set("manifest_digest", digest);
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.apply(ctx, planned, None).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let look = async {
            let client = session.kube_of(ctx).await?;
            let state = match state.get("image").is_null() {
                // An import begins with no more than the namespace.
                true => recover(&client, &state).await?,
                false => Some(state.clone()),
            };
            let Some(state) = state else { return Ok(None) };
            let settings = settings_of(&state)?;
            let (mut differing, mut left, mut deployed) = (Vec::new(), false, false);
            let (mut ready, mut tag) = (Value::Null, Value::Null);
            for object in settings.objects() {
                let live = find(&client, &object).await?;
                left |= live.is_some();
                if object.plural == "deployments"
                    && let Some(live) = &live
                {
                    deployed = true;
                    ready = Value::from(live["status"]["readyReplicas"].as_i64().unwrap_or_default());
                    tag = Value::from(controller_import::image_of(live).and_then(version));
                }
                if !live.is_some_and(|live| contains(&live, &object.json)) {
                    differing.push(called(&object.json));
                }
            }
            // A destroy that was broken off has taken the Deployment first: while anything is left, state must know of it.
            if !left && !has_namespace(&client, &settings).await? {
                return Ok(None);
            }
            if deployed && state.get("wait").as_bool() != Some(false) {
                controller_wait::look(ctx, &client, settings.namespace()).await;
            }
            let digest = match differing.as_slice() {
                [] => digest(&jsons(&settings)),
                differing => format!("differs: {}", differing.join(", ")),
            };
            Ok(Some(state.with("manifest_digest", digest).with("ready_replicas", ready).with("version", tag)))
        };
        session.refresh(ctx, needs(&session), &state, look).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let before: Settings = tfplugin::from_value(&prior)?;
        self.apply(ctx, planned, Some(&before)).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let client = session.kube_of(ctx).await?;
        let settings: Settings = tfplugin::from_value(&prior)?;
        if prior.get("force").as_bool() != Some(true) {
            let claims = asked(ctx, "list NodeClaims", node_claims::live(&client)).await?;
            if !claims.is_empty() {
                let what = format!("only the controller can end {}", node_claims::counted("NodeClaim", &claims));
                return Err(Failure::new(Kind::InUse, "remove the controller", what)
                    .with_fix(
                        "Destroy the node pools first (a karp_node_pool drains its nodes), or delete the NodeClaims and wait; or set \
                         `force = true` and end the instances yourself.",
                    )
                    .into());
            }
        }
        let taken_over = ctx.run(serves_another(&client, &settings)).await??;
        if let Some(monitor) = ctx.run(left::monitor(&client, &settings)).await?? {
            remove(ctx, &session, &monitor).await?;
        }
        for object in settings.objects().iter().rev().filter(|object| !(taken_over && is_of_cluster(object))) {
            remove(ctx, &session, object).await?;
        }
        Ok(remove_namespace(ctx, &session, &settings).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        let Some(namespace) = controller_import::namespace_of(id) else {
            let detail = format!("{id:?} is not NAMESPACE/{NAME}, such as `{NAME}/{NAME}`.");
            return Err(Diagnostic::error("Not the id of a controller", detail).into());
        };
        let state = Value::object([("id", format!("{namespace}/{NAME}")), ("namespace", namespace.to_owned())]);
        Ok(state.with("create_namespace", true).with("wait", true))
    }
}

impl Controller {
    /// Says at plan what a destroy would leave behind, where that can be seen.
    async fn warn_of_claims(&self, ctx: &Context, prior: &Value) -> Diagnostics {
        let session = self.handle.session();
        let mut found = Diagnostics::new();
        let unknown = needs(&session).iter().any(|part: &Part| session.model().unknown(*part).is_some());
        if unknown || session.model().offline_plan || prior.get("force").as_bool() == Some(true) {
            return found;
        }
        let look = async { node_claims::live(&session.kube_ahead(ctx).await.ok()?).await.ok() };
        if let Ok(Some(claims)) = ctx.run(look).await
            && !claims.is_empty()
        {
            found.push(Diagnostic::warning(
                "Nodes live that only the controller can end",
                format!(
                    "Still there: {}. Pools of this configuration are destroyed first and drain theirs; should any be left when it is the \
                     controller's turn, its destruction is refused (unless `force = true`).",
                    node_claims::counted("NodeClaim", &claims)
                ),
            ));
        }
        found
    }
}

fn settings_of(state: &Value) -> Result<Settings, Failure> {
    let read = tfplugin::from_value(state);
    read.map_err(|error| Failure::new(Kind::Unexpected, "read the controller's attributes", error.to_string()))
}

/// Completes the state of an import by what the cluster has; nothing where it has no such Deployment.
async fn recover(client: &Client, state: &Value) -> Result<Option<Value>, Failure> {
    let objects = settings_of(&state.clone().with("service_monitor", Value::object::<&str, Value>([])))?.objects();
    let live = async |plural: &str, name: Option<&str>| {
        let Some(object) = objects.iter().find(|object| object.plural == plural) else { return Ok(Json::Null) };
        let mut json = object.json.clone();
        if let Some(name) = name {
            json["metadata"]["name"] = name.into();
        }
        find(client, &Object { plural: object.plural, json }).await.map(Option::unwrap_or_default)
    };
    let deployment = live("deployments", None).await?;
    if deployment.is_null() {
        return Ok(None);
    }
    let account = deployment["spec"]["template"]["spec"]["serviceAccountName"].as_str();
    let account = live("serviceaccounts", account).await?;
    let (service, budget) = (live("services", None).await?, live("poddisruptionbudgets", None).await?);
    let monitor = live(SERVICE_MONITORS, None).await?;
    Ok(Some(controller_import::recovered(state, &Live { deployment, account, service, budget, monitor })))
}

fn jsons(settings: &Settings) -> Vec<Json> {
    settings.objects().into_iter().map(|object| object.json).collect()
}

/// Gives what was known of an object before an apply; nothing of one that is met for the first time.
fn known<'a>(before: &'a [Object], object: &Object) -> Option<&'a Json> {
    let name = called(&object.json);
    before.iter().find(|one| called(&one.json) == name).map(|one| &one.json)
}

fn called(object: &Json) -> String {
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{} {namespace}/{}", text(&object["kind"]), text(&object["metadata"]["name"])),
        None => format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])),
    }
}

fn is_of_cluster(object: &Object) -> bool {
    object.json["metadata"]["namespace"].is_null()
}

/// Says whether the cluster's roles serve a controller of another namespace by now, as one that was made before this one goes.
async fn serves_another(client: &Client, settings: &Settings) -> Result<bool, Failure> {
    let objects = settings.objects();
    let Some(binding) = objects.iter().find(|object| object.plural == "clusterrolebindings") else { return Ok(false) };
    let live = find(client, binding).await?.unwrap_or_default();
    Ok(is_of_another(&live, settings.namespace()))
}

/// Says whether a binding is of a controller of another namespace. One whose subjects somebody took away is of none.
fn is_of_another(binding: &Json, namespace: &str) -> bool {
    binding["subjects"][0]["namespace"].as_str().is_some_and(|other| other != namespace)
}

fn name_of(object: &Object) -> &str {
    object.json["metadata"]["name"].as_str().unwrap_or_default()
}

fn refused(object: &Object, error: karp_kube::Error) -> Failure {
    let unknown = object.plural == SERVICE_MONITORS && matches!(error, karp_kube::Error::NotFound { .. });
    let failure = failure(format!("apply {}", called(&object.json)), error);
    if !unknown {
        return failure;
    }
    failure
        .at("service_monitor")
        .with_fix("Install the CRDs of the Prometheus operator first, or leave `service_monitor` out.")
}

/// Looks an object up; one whose kind the API server does not know any more (the Prometheus operator's) is not there.
async fn there(api: &Api<DynamicObject>, name: &str, doing: &str) -> Result<Option<DynamicObject>, Failure> {
    match api.get_opt(name).await.map_err(karp_kube::Error::from) {
        Ok(live) => Ok(live),
        Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => Ok(None),
        Err(error) => Err(failure(doing, error)),
    }
}

async fn find(client: &Client, object: &Object) -> Result<Option<Json>, Failure> {
    let api = apply::dynamic(client, object.plural, &object.json);
    let live = there(&api, name_of(object), &format!("read {}", called(&object.json))).await?;
    let live = live.filter(|live| live.metadata.deletion_timestamp.is_none());
    Ok(live.and_then(|live| serde_json::to_value(live).ok()))
}

/// Says whether one of the objects is there that others made.
async fn has_others(client: &Client, objects: &[Object]) -> Result<bool, Failure> {
    for object in objects {
        if find(client, object).await?.is_some_and(|live| is_of_others(&live)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Says whether an object is one that this provider never applied, or that somebody else wrote, too: what an earlier creation took over before
/// it failed.
fn is_of_others(live: &Json) -> bool {
    let mut entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    let by_another = |entry: &Json| {
        entry["manager"] != FIELD_MANAGER && entry["manager"] != CLUSTERS_OWN && !entry["subresource"].is_string()
    };
    owned::by(live, FIELD_MANAGER).is_none() || entries.any(by_another)
}

/// Makes the namespace where it is not there yet; one that others made is left as it is. Says whether it was made now.
async fn ensure_namespace(client: &Client, settings: &Settings) -> Result<Origin, Failure> {
    if settings.create_namespace == Some(false) {
        return Ok(Origin::Adopted);
    }
    let object = settings.namespace_object();
    let api = Api::<Namespace>::all(client.clone());
    let doing = format!("create namespace {:?}", settings.namespace());
    let live = api.get_opt(settings.namespace()).await.map_err(|error| failure(&doing, error.into()))?;
    let origin = if live.is_some() { Origin::Adopted } else { Origin::Made };
    if live.is_some_and(|live| !is_ours(&live)) {
        return Ok(origin);
    }
    let manager = Manager { name: FIELD_MANAGER, force: Force::Yes };
    apply::json(client, manager, object.plural, &object.json).await.map_err(|error| failure(doing, error))?;
    Ok(origin)
}

/// Says whether the namespace is there and one that a destroy takes away.
async fn has_namespace(client: &Client, settings: &Settings) -> Result<bool, Failure> {
    let live = Api::<Namespace>::all(client.clone()).get_opt(settings.namespace()).await;
    let live = live.map_err(|error| failure(format!("read namespace {:?}", settings.namespace()), error.into()))?;
    let goes = |live: &Namespace| is_ours(live) && live.metadata.deletion_timestamp.is_none();
    Ok(settings.create_namespace != Some(false) && live.is_some_and(|live| goes(&live)))
}

fn is_ours(namespace: &Namespace) -> bool {
    namespace.labels().get(MANAGED_BY).is_some_and(|by| by == "karp")
}

/// Deletes an object and, of the Deployment, waits until it is gone: nothing acts any more then, and the rest needs no waiting for.
async fn remove(ctx: &Context, session: &Session, object: &Object) -> Result<(), Failure> {
    let client = session.kube_of(ctx).await?;
    let doing = format!("delete {}", called(&object.json));
    let deleted = changed(ctx, &doing, Box::pin(delete(&client, object))).await?;
    let Some(live) = deleted.filter(|_| is_deployment(object)) else { return Ok(()) };
    let known = (name_of(object), live.metadata.uid.as_deref());
    let api = |client: Client| apply::dynamic(&client, object.plural, &object.json);
    gone(ctx, session, &within(ctx, RESERVE), &doing, known, api).await
}

/// Deletes an object where it is there; gives it as it was.
async fn delete(client: &Client, object: &Object) -> Result<Option<DynamicObject>, Failure> {
    let api = apply::dynamic(client, object.plural, &object.json);
    let (name, doing) = (name_of(object), format!("delete {}", called(&object.json)));
    let Some(live) = there(&api, name, &doing).await? else { return Ok(None) };
    // Foreground, so that the pods are gone when the Deployment is.
    let params = if is_deployment(object) { DeleteParams::foreground() } else { DeleteParams::background() };
    let preconditions = Some(Preconditions { uid: live.metadata.uid.clone(), resource_version: None });
    match api.delete(name, &DeleteParams { preconditions, ..params }).await.map_err(karp_kube::Error::from) {
        Ok(_) => Ok(Some(live)),
        Err(karp_kube::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(failure(doing, error)),
    }
}

fn is_deployment(object: &Object) -> bool {
    object.plural == "deployments"
}

async fn remove_namespace(ctx: &Context, session: &Session, settings: &Settings) -> Result<(), Failure> {
    if settings.create_namespace == Some(false) {
        return Ok(());
    }
    let api = Api::<Namespace>::all(session.kube_of(ctx).await?);
    let name = settings.namespace();
    let doing = format!("delete namespace {name:?}");
    let delete = async {
        let live = api.get_opt(name).await.map_err(|error| failure(&doing, error.into()))?;
        let Some(live) = live.filter(is_ours) else { return Ok(None) };
        let preconditions = Some(Preconditions { uid: live.metadata.uid.clone(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match api.delete(name, &params).await.map_err(karp_kube::Error::from) {
            Ok(_) | Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::Stale { .. }) => Ok(Some(live)),
            Err(error) => Err(failure(&doing, error)),
        }
    };
    let Some(live) = changed(ctx, &doing, Box::pin(delete)).await? else { return Ok(()) };
    let known = (name, live.metadata.uid.as_deref());
    gone(ctx, session, &within(ctx, RESERVE), &doing, known, Api::<Namespace>::all).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tfplugin::testing::Core;

    use super::*;
    use crate::provider::Karp;

    #[tokio::test]
    async fn a_budget_is_planned_before_its_amounts_are_known() {
        let core = Core::new(Karp::default());
        let config = |budget: &Value| {
            let given = Value::object([("cluster_name", "demo"), ("image", "karp:1")]);
            core.config("karp_controller", &given.with("pod_disruption_budget", budget.clone()))
        };
        let budget = |most: Value, least: Value| Value::object([("max_unavailable", most), ("min_available", least)]);
        let half = || Value::from("50%");
        let known = budget(Value::Null, half());
        let before = core.plan("karp_controller", &Value::Null, &config(&known)).await.planned;
        assert!(before.get("manifest_digest").as_str().is_some(), "{before:?}");
        for unknown in [
            Value::Unknown,
            budget(Value::Unknown, Value::Null),
            budget(Value::Null, Value::Unknown),
            budget(Value::Unknown, Value::Unknown),
            // One that turns out to be null leaves the other.
            budget(Value::Unknown, half()),
        ] {
            let config = config(&unknown);
            let found = core.validate("karp_controller", &config).await;
            assert!(found.is_empty(), "{unknown:?}: {found}");
            for prior in [&Value::Null, &before] {
                let plan = core.plan("karp_controller", prior, &config).await;
                assert!(plan.diagnostics.is_empty(), "{unknown:?}: {}", plan.diagnostics);
                assert_eq!(plan.planned.get("pod_disruption_budget"), &unknown);
                assert_eq!(plan.planned.get("manifest_digest"), &Value::Unknown, "{unknown:?}");
            }
        }
        let both = core.validate("karp_controller", &config(&budget(half(), half()))).await;
        assert!(both.to_string().contains("min_available beside max_unavailable"), "{both}");
    }

    #[tokio::test]
    async fn labels_that_karp_goes_by_are_its_own() {
        let core = Core::new(Karp::default());
        let refused = async |attribute: &str, label: &str| {
            let given = Value::object([("cluster_name", "demo"), ("image", "karp:1")]);
            let config = core.config("karp_controller", &given.with(attribute, Value::object([(label, "x")])));
            core.validate("karp_controller", &config).await.to_string()
        };
        for attribute in ["labels", "pod_labels"] {
            assert!(refused(attribute, "app.kubernetes.io/name").await.contains("karp's own"), "{attribute}");
            assert!(!refused(attribute, "team").await.contains("karp's own"), "{attribute}");
        }
        assert!(refused("labels", MANAGED_BY).await.contains("karp's own"));
    }

    #[test]
    fn a_binding_without_subjects_is_of_no_other_controller() {
        let subject =
            |namespace: &str| json!({ "kind": "ServiceAccount", "name": "karpenter", "namespace": namespace });
        assert!(is_of_another(&json!({ "subjects": [subject("there")] }), "here"));
        for binding in [
            json!({ "subjects": [subject("here")] }),
            json!({ "subjects": [{ "kind": "Group", "name": "admins" }] }),
            json!({ "subjects": [] }),
            json!({ "subjects": null }),
            json!({}),
            Json::Null,
        ] {
            assert!(!is_of_another(&binding, "here"), "{binding}");
        }
    }
}
