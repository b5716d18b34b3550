//! CapacityBuffers: room for pods that do not exist yet is planned after everything real, launched, and told of in the buffer's status.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use karp_domain::api::conditions::{self, ConditionStatus, PROVISIONING, READY_FOR_PROVISIONING};
use karp_domain::api::{CapacityBuffer, CapacityBufferStatus};
use karp_domain::cluster::{Buffer, LimitRange, NotReady, PodKey, Reference, Referred};
use karp_domain::scheduling::{Reserve, Room, reserve, solve};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, provisioning};
use crate::effect;
use crate::ops::telemetry::reconcile_id;

/// How often buffers are looked at (Karpenter: every 30 s and on changes).
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// A buffer and what it refers to.
struct Resolved {
    object: CapacityBuffer,
    generation: Option<i64>,
    buffer: Result<Arc<Buffer>, NotReady>,
}

/// Keeps room for buffers until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut told = String::new();
    loop {
        let span = tracing::info_span!("reconcile", controller = "capacitybuffer", reconcileID = reconcile_id());
        let failed = pass(&context).instrument(span).await.join("; ");
        if !failed.is_empty() && failed != told {
            tracing::warn!(error = failed, "capacity buffers could not be read or written");
        }
        told = failed;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Looks at all buffers once; answers what failed.
async fn pass(context: &Context) -> Vec<String> {
    let listed = match Api::<CapacityBuffer>::all(context.client.clone()).list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        // those that were known stay as they were
        Err(error) => return vec![error.to_string()],
    };
    let known = context.buffers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Looked { resolved, ready, mut failures } =
        look(&context.client, listed, &known, &context.stores.limit_ranges()).await;
    *context.buffers.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    let kept = make_room(context).await;
    for one in &resolved {
        let told = tell(&context.client, one, &kept).await;
        failures.extend(told.err().map(|error| failure(&one.object, &error)));
    }
    failures
}

/// What was found of all buffers.
#[derive(Default)]
struct Looked {
    resolved: Vec<Resolved>,
    ready: Vec<Arc<Buffer>>,
    failures: Vec<String>,
}

/// Reads what buffers refer to. A buffer of which that could not be read stays as it was known, and holds up no other.
async fn look(
    client: &Client,
    listed: Vec<CapacityBuffer>,
    known: &[Arc<Buffer>],
    ranges: &[Arc<LimitRange>],
) -> Looked {
    let mut looked = Looked::default();
    for object in listed.into_iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
        match resolve(client, &object, ranges).await {
            Ok((buffer, generation)) => {
                looked.ready.extend(buffer.as_ref().ok().cloned());
                looked.resolved.push(Resolved { object, generation, buffer });
            }
            Err(error) => {
                let key = PodKey::new(&object.namespace().unwrap_or_default(), &object.name_any());
                looked.ready.extend(known.iter().find(|buffer| buffer.key == key).cloned());
                looked.failures.push(failure(&object, &error));
            }
        }
    }
    looked
}

fn failure(buffer: &CapacityBuffer, error: &kube::Error) -> String {
    format!("CapacityBuffer {}/{}: {error}", buffer.namespace().unwrap_or_default(), buffer.name_any())
}

/// What a workload says of its pods, whichever kind of those that a buffer may name.
#[derive(Deserialize)]
struct Workload {
    replicas: Option<i32>,
    template: Option<PodTemplateSpec>,
}

/// What a buffer's reference led to.
enum Found {
    Template(Option<Box<PodTemplate>>),
    Workload(Option<Box<Workload>>),
}

impl Found {
    fn referred(&self) -> Referred<'_> {
        match self {
            Found::Template(found) => {
                let template = found.as_ref().and_then(|found| found.template.as_ref());
                Referred { template, scale: None }
            }
            Found::Workload(found) => found
                .as_ref()
                .map_or_else(Referred::default, |found| Referred::workload(found.template.as_ref(), found.replicas)),
        }
    }

    fn generation(&self) -> Option<i64> {
        match self {
            Found::Template(found) => found.as_ref().and_then(|template| template.metadata.generation),
            Found::Workload(_) => None,
        }
    }
}

/// Reads the template or workload that a buffer names; answers its generation too, where it is a template.
async fn resolve(
    client: &Client,
    object: &CapacityBuffer,
    ranges: &[Arc<LimitRange>],
) -> kube::Result<(Result<Arc<Buffer>, NotReady>, Option<i64>)> {
    let namespace = object.namespace().unwrap_or_default();
    let found = match Reference::of(object) {
        Some(Reference::Template(name)) => {
            let found = Api::<PodTemplate>::namespaced(client.clone(), &namespace).get_opt(name).await?;
            Found::Template(found.map(Box::new))
        }
        Some(Reference::Workload(workload, name)) => {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", workload.kind()));
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
            let read = api.get_opt(name).await?.map(|found| Workload::deserialize(&found.data["spec"]));
            Found::Workload(read.transpose().map_err(kube::Error::SerdeError)?.map(Box::new))
        }
        None => Found::Template(None),
    };
    Ok((Buffer::from_kube(object, found.referred(), ranges).map(Arc::new), found.generation()))
}

/// Plans the room beside all that is real, and launches what it lacks.
async fn make_room(context: &Context) -> Reserve {
    if context.buffers.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        return Reserve::default();
    }
    let _planning = context.planning.lock().await;
    let snapshot = context.snapshot().await;
    let kept = block_in_place(|| reserve(&snapshot, &solve(&snapshot)));
    provisioning::create_admitted(context, &snapshot, &kept.nodes).await;
    kept
}

/// Writes into a buffer's status what was made of it, if that has changed.
async fn tell(client: &Client, one: &Resolved, kept: &Reserve) -> kube::Result<()> {
    let before = one.object.status.clone().unwrap_or_default();
    let status = status(one, kept, Timestamp::now());
    if status == before {
        return Ok(());
    }
    let api: Api<CapacityBuffer> = Api::namespaced(client.clone(), &one.object.namespace().unwrap_or_default());
    let patch = effect::replacing(one.object.status.as_ref(), &status);
    match effect::patch_status(&api, &one.object, &patch).await {
        // another version is looked at the next time
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
        written => written.map(drop),
    }
}

fn status(one: &Resolved, kept: &Reserve, now: Timestamp) -> CapacityBufferStatus {
    let mut status = one.object.status.clone().unwrap_or_default();
    let all = &mut status.conditions;
    match &one.buffer {
        Err(why) => {
            let unmet = ConditionStatus::False;
            conditions::set(all, READY_FOR_PROVISIONING, unmet, why.reason(), &why.to_string(), now);
            conditions::set(all, PROVISIONING, unmet, "NotReadyForProvisioning", "", now);
            status.replicas = None;
        }
        Ok(buffer) => {
            let room = kept.room(buffer);
            let met = if room == Room::Empty { ConditionStatus::False } else { ConditionStatus::True };
            conditions::set(all, READY_FOR_PROVISIONING, ConditionStatus::True, "", "", now);
            conditions::set(all, PROVISIONING, met, room.reason(), &room.to_string(), now);
            status.replicas = Some(i32::try_from(buffer.replicas).unwrap_or(i32::MAX));
            status.provisioning_strategy = Some(one.object.spec.provisioning_strategy.clone());
        }
    }
    conditions::observe(&mut status.conditions, one.object.metadata.generation);
    status.pod_template_ref.clone_from(&one.object.spec.pod_template_ref);
    status.pod_template_generation = one.generation;
    status
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn resolved(template: Option<&PodTemplateSpec>, replicas: i32) -> Resolved {
        let object: CapacityBuffer = serde_json::from_value(json!({
            "metadata": { "name": "room", "namespace": "default", "generation": 7 },
            "spec": { "podTemplateRef": { "name": "t" }, "replicas": replicas },
        }))
        .expect("a buffer");
        let buffer = Buffer::from_kube(&object, Referred { template, scale: None }, &[]).map(Arc::new);
        Resolved { generation: Some(3), buffer, object }
    }

    #[test]
    fn a_status_tells_what_is_missing_and_stays_when_nothing_changes() {
        let now = Timestamp::UNIX_EPOCH;
        let found = |status: &CapacityBufferStatus, kind: &str| {
            let condition = conditions::get(&status.conditions, kind).expect("a condition").clone();
            (condition.status, condition.reason, condition.message)
        };
        let missing = status(&resolved(None, 1), &Reserve::default(), now);
        let (met, reason, message) = found(&missing, READY_FOR_PROVISIONING);
        assert_eq!((met, reason.as_str()), (ConditionStatus::False, "PodTemplateNotFound"));
        assert!(message.contains("PodTemplate t does not exist"), "{message}");
        assert_eq!(found(&missing, PROVISIONING).1, "NotReadyForProvisioning");
        let template: PodTemplateSpec =
            serde_json::from_value(json!({ "spec": { "containers": [{ "name": "c" }] } })).expect("a template");
        let mut there = resolved(Some(&template), 2);
        let told = status(&there, &Reserve::default(), now);
        assert!(told.conditions.iter().all(|condition| condition.observed_generation == Some(7)), "{told:?}");
        assert_eq!(found(&told, READY_FOR_PROVISIONING).0, ConditionStatus::True);
        let (_, reason, message) = found(&told, PROVISIONING);
        assert_eq!(
            (reason.as_str(), message.as_str()),
            ("RequiresNewCapacity", "0 of 2 pods wait for nodes, 2 fit nowhere")
        );
        assert_eq!((told.replicas, told.pod_template_generation), (Some(2), Some(3)));
        there.object.status = Some(told.clone());
        let later = now + jiff::SignedDuration::from_hours(1);
        assert_eq!(status(&there, &Reserve::default(), later), told);
        let none = status(&resolved(Some(&template), 0), &Reserve::default(), now);
        assert_eq!(found(&none, PROVISIONING).1, "BufferEmpty");
    }

    /// An API server that answers each path so, and says of all others that nothing is there.
    fn server(answer: impl Fn(&str) -> Option<(u16, Value)> + Clone + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let gone = || (404, refusal(404, "NotFound"));
            let (code, body) = answer(request.uri().path()).unwrap_or_else(gone);
            let response = http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async { Ok::<_, Infallible>(response.expect("a response")) }
        });
        Client::new(service, "default")
    }

    fn refusal(code: u16, reason: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason})
    }

    fn buffer(name: &str, spec: &Value) -> CapacityBuffer {
        let object = json!({ "metadata": { "name": name, "namespace": "shop" }, "spec": spec });
        serde_json::from_value(object).expect("a buffer")
    }

    #[tokio::test]
    async fn what_a_buffer_refers_to_is_read_whichever_kind_it_is() {
        let template = json!({ "spec": { "containers": [{ "name": "c" }] } });
        let client = server(move |path| match path {
            "/api/v1/namespaces/shop/podtemplates/t" => {
                Some((200, json!({ "metadata": { "name": "t", "generation": 3 }, "template": template })))
            }
            "/apis/apps/v1/namespaces/shop/statefulsets/db" => {
                let spec = json!({ "replicas": 8, "template": template });
                let meta = json!({ "name": "db" });
                Some((200, json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec})))
            }
            _ => None,
        });
        let read = async |spec: Value| {
            let (buffer, generation) = resolve(&client, &buffer("room", &spec), &[]).await.expect("an answer");
            (buffer.map(|buffer| buffer.replicas).map_err(|why| why.reason()), generation)
        };
        let by_template = |name: &str| json!({ "podTemplateRef": { "name": name }, "replicas": 2 });
        let by_workload = |kind: &str| json!({ "scalableRef": { "kind": kind, "name": "db" }, "percentage": 50 });
        assert_eq!(read(by_template("t")).await, (Ok(2), Some(3)));
        assert_eq!(read(by_workload("StatefulSet")).await, (Ok(4), None));
        assert_eq!(read(by_template("gone")).await, (Err("PodTemplateNotFound"), None));
        for kind in ["Deployment", "DaemonSet"] {
            assert_eq!(read(by_workload(kind)).await, (Err("ScalableRefNotFound"), None), "{kind}");
        }
    }

    #[tokio::test]
    async fn a_buffer_that_cannot_be_read_now_stays_as_it_was_and_holds_up_no_other() {
        let of = |name: &str, replicas: i32| {
            buffer(name, &json!({ "podTemplateRef": { "name": name }, "replicas": replicas }))
        };
        let answers = |broken: &'static str| {
            server(move |path| {
                let template =
                    json!({ "metadata": { "name": "t" }, "template": { "spec": { "containers": [{ "name": "c" }] } } });
                let fails = path.ends_with(broken);
                Some(if fails { (500, refusal(500, "InternalError")) } else { (200, template) })
            })
        };
        let counts = |looked: &Looked| -> Vec<(String, u32)> {
            looked.ready.iter().map(|buffer| (buffer.key.name.to_string(), buffer.replicas)).collect()
        };
        let all = || vec![of("a", 1), of("b", 2), of("c", 3)];
        let well = look(&answers("none"), all(), &[], &[]).await;
        assert_eq!((counts(&well).len(), well.failures.len()), (3, 0));
        let mut more = all();
        more.iter_mut().for_each(|one| one.spec.replicas = Some(7));
        let looked = look(&answers("/b"), more.clone(), &well.ready, &[]).await;
        let expected = [("a", 7), ("b", 2), ("c", 7)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(counts(&looked), expected);
        assert_eq!(looked.resolved.len(), 2, "nothing is told of one that could not be read");
        let [told] = &*looked.failures else { panic!("{:?}", looked.failures) };
        assert!(told.starts_with("CapacityBuffer shop/b: ") && told.contains("InternalError"), "{told}");
        let new = look(&answers("/b"), more, &[], &[]).await;
        assert_eq!(new.ready.len(), 2, "no room is kept for what was never read");
    }
}
