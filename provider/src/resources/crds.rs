//! `karp_crds`: the definitions of NodePool, NodeClaim and EC2NodeClass.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karp_domain::api;
use karp_kube::apply::{self, Force, Manager};
use karp_kube::wait::{self, Look};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value as Json, json};
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait,
};

use super::custom_object::{asked, changed, failure, gone, looked, needs, waited, within};
use super::node_claims;
use crate::manifests::definition::{self, Leave, Owner, Refusal, Step, VERSION};
use crate::manifests::{FIELD_MANAGER, contains, digest};
use crate::provider::Handle;
use crate::report::{Failure, Kind};
use crate::session::Session;

const ID: &str = "crds";
/// What is kept of the time limit to report and to store state.
const RESERVE: Duration = Duration::from_secs(2);

/// The CRDs.
pub struct Crds {
    handle: Arc<Handle>,
}

impl Crds {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    /// Looks at all definitions first, so that a refusal finds none of them changed; then brings each to what is wanted.
    async fn apply(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let client = session.kube_of(ctx).await?;
        let leave = Leave {
            adopt: planned.get("adopt").as_bool().unwrap_or(session.model().adopt_existing),
            downgrade: planned.get("allow_downgrade").as_bool() == Some(true),
        };
        let live = ctx.run(all_live(&client)).await??;
        let steps = judged(&live, leave)?;
        // What core finds in the state of a failed creation it destroys next time: what was there before must not go with it.
        let made_here = live.iter().all(Json::is_null);
        // What it is about to apply is nobody else's any more, or was asked for.
        let manager = Manager { name: FIELD_MANAGER, force: Force::Yes };
        let state = told(planned);
        // A stop does not keep those that are left: they are few, and one without the others serves nobody.
        let all = async {
            for (definition, step) in WANTED.iter().zip(steps) {
                if step == Step::Apply {
                    let doing = format!("apply CRD {}", name_of(definition));
                    let marked = definition::with_mark(definition);
                    let applied = apply::json(&client, manager, "customresourcedefinitions", &marked).await;
                    applied.map_err(|error| failure(doing, error))?;
                }
                if made_here {
                    ctx.save(state.clone());
                }
            }
            Ok::<(), Failure>(())
        };
        ctx.carry_out(all).await??;
        for definition in WANTED.iter() {
            let name = name_of(definition);
            let limit = within(ctx, RESERVE);
            let established = wait::established(&client, &name, &limit).await;
            established.map_err(|error| waited(&format!("wait for CRD {name}"), error))?;
        }
        warn_of_releases(ctx, &live);
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

/// Puts into a state what all is there of the definitions once they are applied.
fn told(state: Value) -> Value {
    state.with("id", ID).with("digests", DIGESTS.clone()).with("names", names()).with("version", VERSION)
}

/// What each definition comes to, by name: made once.
static DIGESTS: LazyLock<BTreeMap<String, String>> =
    LazyLock::new(|| WANTED.iter().map(|wanted| (name_of(wanted), spec_digest(wanted))).collect());

fn spec_digest(definition: &Json) -> String {
    digest(std::slice::from_ref(&definition["spec"]))
}

/// Reads the definitions that the cluster has, in the order of those that are wanted; null for one that is not there.
async fn all_live(client: &Client) -> Result<Vec<Json>, Failure> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let mut all = Vec::new();
    for definition in WANTED.iter() {
        let name = name_of(definition);
        let live = api.get_opt(&name).await.map_err(|error| failure(format!("read CRD {name}"), error.into()))?;
        all.push(live.and_then(|live| serde_json::to_value(live).ok()).unwrap_or_default());
    }
    Ok(all)
}

/// Decides what becomes of each live definition; or tells of all that may not be applied, those with the same reason together.
fn judged(live: &[Json], leave: Leave) -> Result<Vec<Step>, Diagnostics> {
    let mut steps = Vec::new();
    let mut refused: Vec<(Refusal, Vec<String>)> = Vec::new();
    for (live, wanted) in live.iter().zip(WANTED.iter()) {
        let judged = if live.is_null() { Ok(Step::Apply) } else { definition::judge(live, wanted, leave) };
        match judged {
            Ok(step) => steps.push(step),
            Err(why) => match refused.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) => names.push(name_of(wanted)),
                None => refused.push((why, vec![name_of(wanted)])),
            },
        }
    }
    if refused.is_empty() {
        return Ok(steps);
    }
    Err(refused.iter().flat_map(|(why, names)| Diagnostics::from(refusal(why, names))).collect())
}

fn refusal(why: &Refusal, names: &[String]) -> Failure {
    let kind = if matches!(why, Refusal::Owned(_)) { Kind::Exists } else { Kind::InUse };
    let plural = if names.len() == 1 { "" } else { "s" };
    Failure::new(kind, format!("apply CRD{plural} {}", names.join(", ")), why.to_string()).with_fix(why.fix(names))
}

/// Warns that Helm still counts definitions as its own that it made, and would take them away with all objects.
fn warn_of_releases(ctx: &Context, live: &[Json]) {
    let owned = |live: &Json| match definition::owner(live) {
        Some(Owner::Release { namespace, name }) => Some((namespace, name)),
        _ => None,
    };
    let Some((namespace, name)) = live.iter().find_map(owned) else { return };
    ctx.warn(Diagnostic::warning(
        format!("Helm release {namespace}/{name} still counts CRDs as its own"),
        format!(
            "They are taken over; `helm uninstall {name}` would delete them all the same, and with them every NodePool and NodeClaim. Make \
             Helm forget the release instead: `kubectl -n {namespace} delete secret -l owner=helm,name={name}`."
        ),
    ));
}

/// Gives what the cluster has as state: ours where nothing is missing; nothing where no definition is left.
fn as_state(state: &Value, live: &[Json]) -> Option<Value> {
    let live: Vec<&Json> = live.iter().map(|live| if is_leaving(live) { &Json::Null } else { live }).collect();
    if live.iter().all(|live| live.is_null()) {
        return None;
    }
    let state = told(state.clone());
    let differs = |(live, wanted): &(&&Json, &Json)| !contains(&live["spec"], &wanted["spec"]);
    let differing: Vec<(&Json, &Json)> =
        live.iter().zip(WANTED.iter()).filter(differs).map(|(live, wanted)| (*live, wanted)).collect();
    if differing.is_empty() {
        return Some(state);
    }
    let mut digests = DIGESTS.clone();
    for (live, wanted) in &differing {
        match live.is_null() {
            true => digests.remove(&name_of(wanted)),
            false => digests.insert(name_of(wanted), spec_digest(live)),
        };
    }
    let marks: Vec<&str> = differing.into_iter().filter_map(|(live, _)| definition::marked(live)).collect();
    // A newer one comes first: it may not be taken back.
    let version = marks.iter().find(|mark| definition::is_newer(mark)).or(marks.first());
    Some(state.with("digests", digests).with("version", version.copied()))
}

fn is_leaving(live: &Json) -> bool {
    !live["metadata"]["deletionTimestamp"].is_null()
}

/// The objects of one definition.
struct Objects {
    /// Named by kind, those that nobody has deleted yet.
    staying: String,
    /// Named by kind, those that are deleted and not gone.
    leaving: String,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = [self.staying.as_str(), self.leaving.as_str()].into_iter().filter(|told| !told.is_empty());
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

/// Looks which objects there are of the definitions; nothing where there are none.
async fn objects(client: &Client) -> Result<Option<Objects>, karp_kube::Error> {
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for definition in WANTED.iter() {
        let (group, names) = (&definition["spec"]["group"], &definition["spec"]["names"]);
        let stored = definition["spec"]["versions"].as_array().into_iter().flatten().find(|one| one["storage"] == true);
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let version = stored.map(|one| text(&one["name"])).unwrap_or_default();
        let of_kind = json!({ "apiVersion": format!("{}/{version}", text(group)), "kind": names["kind"] });
        let api = apply::dynamic(client, &text(&names["plural"]), &of_kind);
        let all = match api.list_metadata(&ListParams::default()).await.map_err(karp_kube::Error::from) {
            Ok(list) => list.items,
            Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => continue,
            Err(error) => return Err(error),
        };
        let (gone, there): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.metadata.deletion_timestamp.is_some());
        for (found, told) in [(gone, &mut leaving), (there, &mut staying)] {
            let called: Vec<String> = found.iter().map(|one| one.name_any()).collect();
            told.extend((!called.is_empty()).then(|| node_claims::counted(&text(&names["kind"]), &called)));
        }
    }
    let found = !(staying.is_empty() && leaving.is_empty());
    Ok(found.then(|| Objects { staying: staying.join(", "), leaving: leaving.join(", ") }))
}

/// Holds that no object is left that would go with its definition: refuses where one stays, waits for those that are on their way out.
async fn await_empty(ctx: &Context, session: &Session) -> Result<(), Failure> {
    let doing = "delete the CRDs";
    let client = session.kube_of(ctx).await?;
    let there = asked(ctx, doing, objects(&client)).await?;
    if let Some(there) = there.filter(|there| !there.staying.is_empty()) {
        let what = format!("every object would go with them, and the cluster has {}", there.staying);
        return Err(Failure::new(Kind::InUse, doing, what).with_fix(
            "Destroy or delete them first, node pools before all else, so that their nodes are drained; or set `keep_on_destroy = true` and \
             apply, to leave the definitions.",
        ));
    }
    let look = |client: Client| async move {
        let left = objects(&client).await?;
        Ok(left.map_or(Look::Done(()), |left| Look::NotYet(left.to_string())))
    };
    let gone = looked(ctx, &within(ctx, RESERVE), doing, || session.kube_of(ctx), look).await;
    gone.map_err(|late| {
        late.with_fix(
            "They are deleted, and one with a finalizer waits for the controller: look at them with `kubectl get \
             nodepools,nodeclaims,ec2nodeclasses`, then run this again.",
        )
    })
}

/// Deletes a definition where it is there; gives it as it was.
async fn delete(
    api: &Api<CustomResourceDefinition>,
    name: &str,
    doing: &str,
) -> Result<Option<CustomResourceDefinition>, Failure> {
    let live = api.get_opt(name).await.map_err(|error| failure(doing, error.into()))?;
    let Some(live) = live else { return Ok(None) };
    let preconditions = Some(Preconditions { uid: live.uid(), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match api.delete(name, &params).await.map_err(karp_kube::Error::from) {
        Ok(_) => Ok(Some(live)),
        Err(karp_kube::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(failure(doing, error)),
    }
}

#[async_trait]
impl Resource for Crds {
    fn type_name(&self) -> &'static str {
        "karp_crds"
    }

    fn schema(&self) -> Schema {
        Schema::new(
            "The custom resource definitions NodePool, NodeClaim, EC2NodeClass, NodeOverlay and CapacityBuffer, as this version of the provider \
             has them. Those of others are taken over when asked, newer ones are never taken back unasked, and none is deleted while it \
             has objects.",
        )
        .timeouts(Timeouts::default())
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe("Always `crds`."))
        .attribute(
            "keep_on_destroy",
            Attribute::bool().default(true).describe(
                "Leave the definitions at destroy. With `false` they are deleted, once no NodePool, NodeClaim, EC2NodeClass, NodeOverlay or \
                 CapacityBuffer is left in the cluster.",
            ),
        )
        .attribute(
            "adopt",
            Attribute::bool().optional().describe(
                "Take over definitions that Helm or another field manager keeps, instead of an error that names it; the provider block's \
                 `adopt_existing` when left out.",
            ),
        )
        .attribute(
            "allow_downgrade",
            Attribute::bool().optional().describe(
                "Apply these definitions even where the cluster has newer ones: what objects say in fields that go is lost when they are \
                 next written.",
            ),
        )
        .attribute(
            "names",
            Attribute::list(Type::String).computed().use_state_for_unknown().describe("The names of the definitions."),
        )
        .attribute(
            "version",
            Attribute::string().computed().describe("The version of karp that the definitions are of, where they say so."),
        )
        .attribute(
            "digests",
            Attribute::map(Type::String).computed().describe(
                "A digest of each definition by its name: one that differs will be brought up to date, and one that is missing made.",
            ),
        )
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let mut found = Diagnostics::new();
        if change.is_destroy() {
            return found;
        }
        change.planned = told(change.planned.clone());
        let newer = change.prior.get("version").as_str().filter(|version| definition::is_newer(version));
        if let Some(version) = newer.filter(|_| change.planned.get("allow_downgrade").as_bool() != Some(true)) {
            let why = Refusal::Newer { from: format!("karp {version}"), lost: Vec::new() };
            found.extend(Diagnostics::from(refusal(&why, &names())));
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.apply(ctx, planned).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let look = async {
            let client = session.kube_of(ctx).await?;
            Ok(as_state(&state, &all_live(&client).await?))
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
        let session = self.handle.session();
        await_empty(ctx, &session).await?;
        let api = Api::<CustomResourceDefinition>::all(session.kube_of(ctx).await?);
        let mut going = Vec::new();
        for name in names() {
            let doing = format!("delete CRD {name}");
            let deleted = changed(ctx, &doing, Box::pin(delete(&api, &name, &doing))).await?;
            going.extend(deleted.map(|live| (name, live.uid())));
        }
        for (name, uid) in &going {
            let (limit, doing, known) =
                (within(ctx, RESERVE), format!("delete CRD {name}"), (name.as_str(), uid.as_deref()));
            let end = gone(ctx, &session, &limit, &doing, known, Api::<CustomResourceDefinition>::all).await;
            end.map_err(|late| {
                late.with_fix(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Json> {
        WANTED.iter().map(definition::with_mark).collect()
    }

    fn without_columns(mut live: Vec<Json>, mark: &str) -> Vec<Json> {
        live[0]["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        live[0]["metadata"]["annotations"][definition::VERSION_ANNOTATION] = mark.into();
        live
    }

    #[test]
    fn state_tells_the_version_of_what_the_cluster_has() {
        let state = as_state(&Value::object([("id", ID)]), &all()).expect("definitions");
        assert_eq!(state.get("version"), &Value::from(VERSION));
        let differing = as_state(&state, &without_columns(all(), "0.0.1")).expect("definitions");
        assert_eq!(differing.get("version"), &Value::from("0.0.1"));
        let first = name_of(&WANTED[0]);
        let (known, changed) = (state.get("digests").as_map().unwrap(), differing.get("digests").as_map().unwrap());
        let unlike: Vec<&String> =
            known.iter().filter(|(name, digest)| changed.get(*name) != Some(digest)).map(|(name, _)| name).collect();
        assert_eq!((unlike, changed.len()), (vec![&first], known.len()));
        let some_gone = as_state(&state, &[&[Json::Null], &all()[1..]].concat()).expect("definitions");
        let left = some_gone.get("digests").as_map().unwrap();
        assert!(!left.contains_key(&first) && left.len() == known.len() - 1);
        assert_eq!(as_state(&state, &vec![Json::Null; all().len()]), None);
    }

    #[tokio::test]
    async fn a_plan_does_not_take_back_what_a_newer_karp_brought() {
        let prior = as_state(&Value::object([("id", ID)]), &without_columns(all(), "99.1.0")).expect("definitions");
        let plan = async |allowed: Value| {
            let planned = prior.clone().with("allow_downgrade", allowed);
            let (config, requires_replace) = (planned.clone(), Vec::new());
            let mut change = PlannedChange { prior: prior.clone(), config, planned, requires_replace };
            let ctx = Context::new(tokio_util::sync::CancellationToken::new(), Duration::from_secs(1));
            Crds::new(&Arc::default()).plan(&ctx, &mut change).await
        };
        let refused = plan(Value::Null).await.to_string();
        assert!(refused.contains("karp 99.1.0") && refused.contains(VERSION), "{refused}");
        assert!(plan(true.into()).await.is_empty());
    }

    #[test]
    fn those_that_are_refused_for_one_reason_are_told_of_together() {
        let kept: Vec<Json> = all()
            .into_iter()
            .map(|mut live| {
                live["metadata"]["managedFields"] =
                    json!([{ "manager": "helm", "fieldsV1": { "f:spec": { "f:versions": {} } } }]);
                live["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
                live
            })
            .collect();
        let refused = judged(&kept, Leave::default()).unwrap_err();
        assert_eq!(refused.iter().count(), 1, "{refused}");
        assert!(names().iter().all(|name| refused.to_string().contains(name)), "{refused}");
        let adopt = Leave { adopt: true, ..Leave::default() };
        assert_eq!(judged(&kept, adopt).unwrap().len(), names().len());
        assert_eq!(judged(&vec![Json::Null; all().len()], Leave::default()).unwrap(), [(); 5].map(|()| Step::Apply));
    }
}
