//! One kind of custom object: what its attributes say as an object, and how the API server is asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karp_domain::api::labels::UNFINISHED;
use karp_domain::api::lint::{Finding, Weight};
use karp_domain::api::validate::{Violation, ViolationKind};
use karp_domain::api::words;
use karp_kube::apply::{self, Force, Manager};
use karp_kube::wait::{self, Look, Until, WaitError};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tfplugin::{AttributePath, Context, Diagnostic, Diagnostics, PlannedChange, Value};

use super::foresight::adopts;
use super::{changed, failure, metadata, waited, within};
use crate::aws::Origin;
use crate::manifests::FIELD_MANAGER;
use crate::manifests::spec::{self, Attributes, Scope};
use crate::marks::Mark;
use crate::report::{Failure, Kind};
use crate::resources::inherit;
use crate::session::Session;

/// A CRD of the same apply may be some moments behind.
const CRD_PATIENCE: Duration = Duration::from_secs(60);
/// A controller that runs answers within seconds; one that has not after this long is told of, and the apply goes on.
const READY_PATIENCE: Duration = Duration::from_secs(120);
/// What is kept of the time limit to report and to store state.
const RESERVE: Duration = Duration::from_secs(3);

/// One kind of custom object.
#[derive(Clone, Copy)]
pub struct CustomKind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub crd: &'static str,
    /// The API's defaults of the spec, which an import leaves out (decision 0018).
    pub defaults: fn() -> Json,
    /// Says what the API server would refuse.
    pub validate: fn(&Json) -> Vec<Violation>,
    /// Says what the API server takes and nobody can have meant.
    pub lint: fn(&Json) -> Vec<Finding>,
    /// Turns attributes as one tree of fields into the spec.
    pub to_spec: fn(Json) -> Json,
    /// Turns the spec into a tree of fields, given the state before.
    pub from_spec: fn(&Json, &Value) -> Json,
    /// Gives the computed attributes that follow from the status; nothing while there is none.
    pub observed: fn(&Json) -> Vec<(&'static str, Value)>,
    /// Gives the attribute path, dotted as fields are, of a path in the spec.
    pub locate: fn(&str) -> String,
}

/// What an apply meets in the cluster.
#[derive(Clone, Copy)]
pub(super) enum Met<'a> {
    /// Nothing, or what an earlier run began: the object is made, with this mark.
    Nothing(&'a Mark),
    /// An object that others made, which is taken over.
    Theirs,
    /// The object that this state tells of.
    Known(&'a Value),
}

impl CustomKind {
    /// Reads attributes as the API's type; nothing while a part of them is not known.
    pub fn typed<T: DeserializeOwned>(&self, attributes: &Attributes, value: &Value) -> Option<T> {
        let mut unknown = Vec::new();
        let object = self.object(attributes, value, &mut unknown);
        if unknown.is_empty() { serde_json::from_value(object).ok() } else { None }
    }

    /// Writes the object that attributes describe; the paths of unknown attributes are noted.
    pub fn object(&self, attributes: &Attributes, value: &Value, unknown: &mut Vec<AttributePath>) -> Json {
        let fields = spec::fields(attributes, value, &AttributePath::root(), unknown);
        json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": metadata::written(value, unknown),
            "spec": (self.to_spec)(fields),
        })
    }

    /// Plans `id`, which is the name; refuses to plan from what was never read.
    pub fn plan_id(change: &mut PlannedChange) -> Diagnostics {
        if change.is_create() && change.planned.get("name").is_known() {
            let name = change.planned.get("name").clone();
            change.planned.set("id", name);
        }
        inherit::check_read(change)
    }

    pub(super) async fn settle(&self, ctx: &Context, client: &Client, state: &Value) {
        if state.get("wait_for_ready").as_bool() == Some(true) {
            self.wait_ready(ctx, client, state.get("name").as_str().unwrap_or_default()).await;
        }
    }

    pub(super) fn api(&self, client: &Client, name: &str) -> Api<DynamicObject> {
        let object = json!({ "apiVersion": self.api_version, "kind": self.kind, "metadata": { "name": name } });
        apply::dynamic(client, self.plural, &object)
    }

    /// Looks the object up; nothing where it or its CRD is gone.
    pub(super) async fn find(&self, client: &Client, name: &str) -> Result<Option<DynamicObject>, Failure> {
        match self.api(client, name).get(name).await.map_err(karp_kube::Error::from) {
            Ok(object) => Ok(Some(object)),
            Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => Ok(None),
            Err(error) => Err(failure(format!("read {} {name:?}", self.kind), error)),
        }
    }

    /// Lists all objects of the kind, by name; none where its CRD is gone.
    pub(super) async fn list(&self, client: &Client) -> Result<BTreeMap<String, DynamicObject>, Failure> {
        match self.api(client, "").list(&ListParams::default()).await.map_err(karp_kube::Error::from) {
            Ok(list) => Ok(list.items.into_iter().map(|object| (object.name_any(), object)).collect()),
            Err(karp_kube::Error::NotFound { .. } | karp_kube::Error::UnknownKind { .. }) => Ok(BTreeMap::new()),
            Err(error) => Err(failure(format!("list {}", self.plural), error)),
        }
    }

    /// Tells whether the object exists already, and refuses to take it over unless that is wanted. One that a creation of an earlier run left
    /// counts as made now.
    pub(super) async fn origin(
        &self,
        session: &Session,
        client: &Client,
        planned: &Value,
        mark: &Mark,
    ) -> Result<Origin, Failure> {
        let name = planned.get("name").as_str().unwrap_or_default();
        match self.find(client, name).await? {
            Some(live) if live.metadata.deletion_timestamp.is_some() => {
                let doing = format!("create {} {name:?}", self.kind);
                let what = format!("an object of this name is on its way out ({})", waits_for(&live));
                let fix = "Wait until it is gone (only a controller that runs ends it), then run this again.";
                Err(Failure::new(Kind::InUse, doing, what).at("name").with_fix(fix))
            }
            Some(live) if mark.continues(live.annotations().get(UNFINISHED).map(String::as_str)) => Ok(Origin::Made),
            Some(_) if adopts(session, planned) => Ok(Origin::Adopted),
            Some(live) => {
                let doing = format!("create {} {name:?}", self.kind);
                let what = format!("the cluster has an object of this name{}", written_by(&live));
                Err(Failure::new(Kind::Exists, doing, what).at("name"))
            }
            None => Ok(Origin::Made),
        }
    }

    /// Takes the mark off an object that was made.
    pub(super) async fn unmark(&self, client: &Client, name: &str) -> Result<(), Failure> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let without = json!({ "metadata": { "annotations": { UNFINISHED: null } } });
        let patched = self.api(client, name).patch(name, &params, &Patch::Merge(without)).await;
        let doing = || format!("take the mark off {} {name:?}", self.kind);
        patched.map(drop).map_err(|error| failure(doing(), karp_kube::Error::from(error)))
    }

    /// Applies the object, after its CRD is served. What was known of it before and is planned no more goes, whoever wrote it.
    pub(super) async fn apply(
        &self,
        ctx: &Context,
        client: &Client,
        attributes: &Attributes,
        planned: &Value,
        met: Met<'_>,
    ) -> Result<DynamicObject, Diagnostics> {
        let limit = Until::after(ctx.remaining().min(CRD_PATIENCE), ctx.stop());
        let doing = format!("apply {} {:?}", self.kind, planned.get("name").as_str().unwrap_or_default());
        wait::established(client, self.crd, &limit).await.map_err(|error| {
            waited(&doing, error).with_fix(format!(
                "The CRD {} must be installed first: add a karp_crds resource and let this one depend on it.",
                self.crd
            ))
        })?;
        let mut unknown = Vec::new();
        let mut object = self.object(attributes, planned, &mut unknown);
        if let Met::Nothing(mark) = met {
            object["metadata"]["annotations"][UNFINISHED] = mark.text().into();
        }
        if let Some(path) = unknown.into_iter().next() {
            return Err(Diagnostic::error("Value not known", "This must be known when it is applied.").at(path).into());
        }
        let force = if planned.get("force_conflicts").as_bool() == Some(true) { Force::Yes } else { Force::No };
        let manager = Manager { name: FIELD_MANAGER, force };
        let before = ctx.run(self.before(client, attributes, planned, met)).await??;
        let apply = async {
            if let Some(before) = &before {
                apply::claim(client, manager, self.plural, Some(before), &object).await?;
            }
            apply::json(client, manager, self.plural, &object).await
        };
        ctx.carry_out(apply).await?.map_err(|error| self.refused(&doing, error))
    }

    /// Gives the object as it is known before an apply. Of one that is taken over this is what the plan sets, as the next refresh would read it.
    async fn before(
        &self,
        client: &Client,
        attributes: &Attributes,
        planned: &Value,
        met: Met<'_>,
    ) -> Result<Option<Json>, Failure> {
        let object = |state: &Value| metadata::with_note(self.object(attributes, state, &mut Vec::new()), state);
        match met {
            Met::Nothing(_) => Ok(None),
            Met::Known(state) => Ok(Some(object(state))),
            Met::Theirs => {
                let live = self.find(client, planned.get("name").as_str().unwrap_or_default()).await?;
                Ok(live.map(|live| object(&self.state(attributes, planned, &live, Scope::Known))))
            }
        }
    }

    /// Tells of what an object that was taken over has besides: it is nobody's difference, and so shown this once.
    pub fn beyond(&self, attributes: &Attributes, planned: &Value, live: &DynamicObject) -> Option<Diagnostic> {
        let bare = Value::object([("name", live.name_any())]);
        let whole = self.state(attributes, &bare, live, Scope::All);
        let mut beyond = Vec::new();
        for name in attributes.keys() {
            unplanned(whole.get(name), planned.get(name), &AttributePath::root().attribute(name), &mut beyond);
        }
        let beyond: Vec<String> = beyond.iter().map(ToString::to_string).collect();
        (!beyond.is_empty()).then(|| {
            Diagnostic::warning(
                format!("{} {:?} has more than the configuration says", self.kind, live.name_any()),
                format!(
                    "Others set {}. That stays as it is, and no plan shows it. Add it to the configuration to keep it up to date; added, \
                     applied and deleted there again, it is gone.",
                    beyond.join(", ")
                ),
            )
        })
    }

    /// Shows an API server's refusal at the attributes that it names.
    fn refused(&self, doing: &str, error: karp_kube::Error) -> Diagnostics {
        let karp_kube::Error::Invalid { causes, message } = &error else { return failure(doing, error).into() };
        if causes.is_empty() {
            return Failure::new(Kind::Invalid, doing, message).into();
        }
        let show = |cause: &karp_kube::FieldCause| {
            let message = words::without_pattern(&cause.message);
            let violation = Violation { path: cause.field.clone(), kind: ViolationKind::Rule, message };
            diagnostic(self.kind, &violation, spec::path_of(&(self.locate)(&cause.field)))
        };
        causes.iter().map(show).collect()
    }

    /// Waits until the controller says that the object is ready. One that does not become so is a warning: the object exists, and an error
    /// would make Terraform destroy and create it again.
    async fn wait_ready(&self, ctx: &Context, client: &Client, name: &str) {
        let limit = within(ctx, RESERVE).at_most(READY_PATIENCE);
        let api = self.api(client, name);
        let waited_for = wait::until(&limit, || async {
            let object = api.get(name).await?;
            Ok(readiness(&object.data, object.metadata.generation))
        });
        match waited_for.await {
            Ok(()) => {}
            Err(WaitError::TimedOut { seen } | WaitError::Cancelled { seen }) => {
                ctx.warn(Diagnostic::warning(
                    format!("{} {name:?} is not ready yet", self.kind),
                    format!(
                        "It is applied, and the controller goes on with it; seen last: {seen}\n\nLook at the conditions with `kubectl \
                         describe {} {name}`, or set `wait_for_ready = false`.",
                        self.plural
                    ),
                ));
            }
            Err(WaitError::Api(error)) => ctx.warn(self.unseen(name, &error)),
        }
    }

    /// Tells that nobody could look whether an object that is applied is ready.
    fn unseen(&self, name: &str, error: &karp_kube::Error) -> Diagnostic {
        Diagnostic::warning(
            format!("Whether {} {name:?} is ready is not known", self.kind),
            format!(
                "It is applied, and the controller goes on with it. It could not be looked at: {error}\n\nLook at the conditions with `kubectl \
                 describe {} {name}`, or set `wait_for_ready = false`.",
                self.plural
            ),
        )
    }

    /// Reads the object into state: the fields, labels and annotations that state has, or all of them for an import. Of a pool whose drain was
    /// broken off the limits are read, too: they keep it from growing, also where `ignore_changes` hides the annotation that says so.
    pub fn state(&self, attributes: &Attributes, prior: &Value, live: &DynamicObject, scope: Scope) -> Value {
        let asked = match metadata::drains(live) && prior.get("limits").is_null() {
            true => prior.clone().with("limits", Value::object::<&str, Value>([])),
            false => prior.clone(),
        };
        let metadata = metadata::read(prior, live, scope);
        let observed = (self.observed)(live.data.get("status").unwrap_or(&Json::Null));
        let live = live.data.get("spec").cloned().unwrap_or_default();
        let live = match scope {
            Scope::Known => live,
            Scope::All => spec::without_defaults(&live, &(self.defaults)()),
        };
        let mut state = prior.clone();
        if let Value::Map(read) = spec::attributes(attributes, &asked, &(self.from_spec)(&live, prior), scope) {
            for (name, value) in read {
                state.set(name, value);
            }
        }
        for (name, value) in metadata.into_iter().chain(observed) {
            state.set(name, value);
        }
        state
    }

    /// Deletes the object if it still is the one that is known; gives its UID.
    pub async fn delete(&self, ctx: &Context, client: &Client, name: &str) -> Result<Option<String>, Failure> {
        let doing = format!("delete {} {name:?}", self.kind);
        let delete = async {
            let Some(live) = self.find(client, name).await? else { return Ok(None) };
            let preconditions = Some(Preconditions { uid: live.uid(), resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::background() };
            match self.api(client, name).delete(name, &params).await.map_err(karp_kube::Error::from) {
                Ok(_) | Err(karp_kube::Error::NotFound { .. }) => Ok(live.uid()),
                Err(error) => Err(failure(&doing, error)),
            }
        };
        changed(ctx, &doing, delete).await
    }

    /// Tells of an object that is deleted and not gone.
    pub(super) fn leaving(&self, live: &DynamicObject) -> Diagnostic {
        Diagnostic::warning(
            format!("{} {:?} is on its way out", self.kind, live.name_any()),
            format!(
                "It was deleted, and stays in the state until it is gone ({}). Plan again then: it is created anew where it is still \
                 configured.",
                waits_for(live)
            ),
        )
    }
}

/// Finds attributes that have a value and are planned to have none.
fn unplanned(live: &Value, planned: &Value, at: &AttributePath, found: &mut Vec<AttributePath>) {
    fn says_nothing(value: &Value) -> bool {
        value.is_null() || value.as_map().is_some_and(|inner| inner.values().all(says_nothing))
    }
    match (live, planned) {
        (live, _) if says_nothing(live) => {}
        (_, Value::Null) => found.push(at.clone()),
        (Value::Map(live), planned @ Value::Map(_)) => {
            for (name, live) in live {
                unplanned(live, planned.get(name), &at.clone().attribute(name), found);
            }
        }
        _ => {}
    }
}

fn waits_for(live: &DynamicObject) -> String {
    format!("finalizers: {}", live.finalizers().join(", "))
}

/// Says who wrote an object, by its field managers; nothing where it tells of none.
fn written_by(live: &DynamicObject) -> String {
    let entries = live.metadata.managed_fields.iter().flatten().filter(|entry| entry.subresource.is_none());
    let managers: BTreeSet<&str> = entries.filter_map(|entry| entry.manager.as_deref()).collect();
    match managers.is_empty() {
        true => String::new(),
        false => format!(", written by {}", Vec::from_iter(managers).join(", ")),
    }
}

pub(super) fn diagnostic(kind: &str, violation: &Violation, path: AttributePath) -> Diagnostic {
    let summary = match violation.kind {
        ViolationKind::Missing => format!("{kind}: a value is missing"),
        _ => format!("{kind}: the API server would refuse this"),
    };
    let place = if path.is_root() { violation.path.clone() } else { path.to_string() };
    Diagnostic::error(summary, format!("{place}: {}", violation.message)).at(path)
}

pub(super) fn doubt(kind: &str, finding: &Finding, path: AttributePath) -> Diagnostic {
    let detail = format!("{path}: {}", finding.message);
    match finding.weight {
        Weight::Futile => Diagnostic::error(format!("{kind}: nothing can come of this"), detail),
        Weight::Doubtful => Diagnostic::warning(format!("{kind}: this is hardly what was meant"), detail),
    }
    .at(path)
}

/// Reads the root condition of a status; one of an older generation does not count.
fn readiness(data: &Json, generation: Option<i64>) -> Look<()> {
    let conditions = data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is = |condition: &Json, kind: &str, status: &str| condition["type"] == kind && condition["status"] == status;
    let current =
        |condition: &Json| condition["observedGeneration"].as_i64().is_none_or(|seen| Some(seen) >= generation);
    if conditions.iter().any(|condition| is(condition, "Ready", "True") && current(condition)) {
        return Look::Done(());
    }
    let open: Vec<String> = conditions
        .iter()
        .filter(|condition| condition["status"] != "True")
        .map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            format!("{}={} {} {}", text("type"), text("status"), text("reason"), text("message")).trim().to_owned()
        })
        .collect();
    Look::NotYet(if open.is_empty() {
        "no conditions yet: is the controller running?".to_owned()
    } else {
        open.join("; ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_tells_who_wrote_it() {
        let by = |managers: Json| -> String {
            let object = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
                "metadata": { "name": "a", "managedFields": managers } });
            written_by(&serde_json::from_value(object).expect("an object"))
        };
        let entries = json!([{ "manager": "kubectl" }, { "manager": "helm" }, { "manager": "kubectl" },
            { "manager": "karp", "subresource": "status" }]);
        assert_eq!(by(entries), ", written by helm, kubectl");
        assert_eq!(by(json!([])), "");
    }
}
