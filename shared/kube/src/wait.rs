//! Waiting for the API server's objects, until a deadline or a cancellation.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Error, pods};

/// Looks are this far apart: soon enough to feel immediate, rare enough for any API server.
const PAUSE: Duration = Duration::from_millis(250);
/// An unreachable API server is borne this long before it is reported.
const PATIENCE: Duration = Duration::from_secs(30);
/// A first look may take this long, however soon the wait ends: one that saw nothing could tell nothing.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Until when to wait.
#[derive(Clone, Debug)]
pub struct Until {
    pub deadline: Instant,
    pub cancelled: CancellationToken,
}

/// Why a wait ended before its aim.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("stopped while waiting: {seen}")]
    Cancelled { seen: String },
    #[error("waited too long: {seen}")]
    TimedOut { seen: String },
    #[error(transparent)]
    Api(#[from] Error),
}

/// What one look saw.
pub enum Look<T> {
    /// The aim is reached.
    Done(T),
    /// Not yet; the text says what is missing.
    NotYet(String),
}

impl Until {
    /// Returns a wait of this length from now.
    #[must_use]
    pub fn after(limit: Duration, cancelled: &CancellationToken) -> Self {
        Self { deadline: Instant::now() + limit, cancelled: cancelled.clone() }
    }

    /// Ends the wait after this length from now, where it does not end before.
    #[must_use]
    pub fn at_most(self, limit: Duration) -> Self {
        // One that is endless has no end that a clock could tell.
        let end = Instant::now().checked_add(limit).map_or(self.deadline, |end| end.min(self.deadline));
        Self { deadline: end, ..self }
    }
}

/// Looks again and again until the aim is reached, and once at least. Failures that may pass are borne for a while; a wait that ends amid them
/// tells the last one.
pub async fn until<T, F>(until: &Until, mut look: impl FnMut() -> F) -> Result<T, WaitError>
where
    F: Future<Output = Result<Look<T>, Error>>,
{
    let mut seen = String::from("nothing seen yet");
    let mut failed: Option<(Instant, String)> = None;
    let mut end = until.deadline.max(Instant::now() + FIRST_LOOK);
    loop {
        let looked = tokio::select! {
            biased;
            () = until.cancelled.cancelled() => return Err(WaitError::Cancelled { seen: told(seen, failed) }),
            looked = look() => looked,
            () = tokio::time::sleep_until(end) => return Err(WaitError::TimedOut { seen: told(seen, failed) }),
        };
        end = until.deadline;
        match looked {
            Ok(Look::Done(found)) => return Ok(found),
            Ok(Look::NotYet(text)) => {
                failed = None;
                seen = text;
            }
            Err(error) if error.is_transient() => {
                let since = failed.map_or_else(Instant::now, |(since, _)| since);
                if since.elapsed() > PATIENCE {
                    return Err(error.into());
                }
                failed = Some((since, error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            biased;
            () = until.cancelled.cancelled() => return Err(WaitError::Cancelled { seen: told(seen, failed) }),
            () = tokio::time::sleep_until(until.deadline) => return Err(WaitError::TimedOut { seen: told(seen, failed) }),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Tells what was seen last, and why nothing was since.
fn told(seen: String, failed: Option<(Instant, String)>) -> String {
    match failed {
        Some((_, why)) => format!("{seen}; asked again, {why}"),
        None => seen,
    }
}

/// Waits until a CRD is served.
pub async fn established(client: &Client, name: &str, limit: &Until) -> Result<(), WaitError> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    until(limit, || async {
        let Some(crd) = api.get_opt(name).await? else {
            return Ok(Look::NotYet(format!("CRD {name} is not there yet")));
        };
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True") {
            return Ok(Look::Done(()));
        }
        let names =
            conditions.iter().find(|condition| condition.type_ == "NamesAccepted" && condition.status == "False");
        let why = names.and_then(|condition| condition.message.clone()).unwrap_or_default();
        Ok(Look::NotYet(format!("CRD {name} is not established yet {why}")))
    })
    .await
}

/// Looks once whether an object is gone; an object of the same name but another uid does not count.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn is_gone<K>(api: &Api<K>, name: &str, uid: Option<&str>) -> Result<Look<()>, Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    Ok(match api.get_opt(name).await? {
        Some(object) if uid.is_none() || object.uid().as_deref() == uid => {
            let finalizers = object.finalizers().join(", ");
            let kept = if finalizers.is_empty() { finalizers } else { format!(" (finalizers: {finalizers})") };
            Look::NotYet(format!("{name} is still there{kept}"))
        }
        _ => Look::Done(()),
    })
}

/// Looks once whether a Deployment's newest version is rolled out and available.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn is_available(client: &Client, namespace: &str, name: &str) -> Result<Look<()>, Error> {
    let Some(deployment) = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(name).await? else {
        return Ok(Look::NotYet(format!("Deployment {namespace}/{name} is not there")));
    };
    let Some(missing) = rollout(&deployment) else { return Ok(Look::Done(())) };
    let reasons = pods::reasons(client, namespace, &deployment).await.unwrap_or_default();
    Ok(Look::NotYet(format!("Deployment {namespace}/{name}: {missing}{reasons}")))
}

/// Returns what a rollout still lacks; nothing when it is done.
fn rollout(deployment: &Deployment) -> Option<String> {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return Some("no status yet".to_owned()) };
    if status.observed_generation < deployment.metadata.generation {
        return Some("the newest version is not seen yet".to_owned());
    }
    // Where no pod can be made (a quota, an admission policy, no service account), this is all that tells why.
    let conditions = status.conditions.iter().flatten();
    let failure =
        conditions.into_iter().find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    if let Some(message) = failure.and_then(|condition| condition.message.clone()) {
        return Some(message);
    }
    let (updated, available) = (status.updated_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
    let total = status.replicas.unwrap_or(0);
    if updated < wanted {
        return Some(format!("{updated} of {wanted} replicas updated"));
    }
    if total > updated {
        return Some(format!("{} old replicas still there", total - updated));
    }
    (available < updated).then(|| format!("{available} of {updated} replicas available"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(milliseconds: u64) -> Until {
        Until::after(Duration::from_millis(milliseconds), &CancellationToken::new())
    }

    #[tokio::test]
    async fn an_endless_patience_leaves_the_deadline_as_it_is() {
        let wait = limit(700);
        let deadline = wait.deadline;
        assert_eq!(wait.at_most(Duration::MAX).deadline, deadline);
        assert!(limit(700).at_most(Duration::ZERO).deadline < deadline);
    }

    #[tokio::test]
    async fn a_wait_that_is_too_long_tells_what_it_saw_last() {
        let waited = until::<(), _>(&limit(700), || async { Ok(Look::NotYet("1 of 2".to_owned())) }).await;
        assert!(matches!(waited, Err(WaitError::TimedOut { seen }) if seen == "1 of 2"));
    }

    #[tokio::test]
    async fn however_short_a_wait_is_it_looks_once() {
        let slowly = |look: fn() -> Look<u8>| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(look())
        };
        let waited = until::<u8, _>(&limit(0), || slowly(|| Look::NotYet("1 of 2".to_owned()))).await;
        assert!(matches!(waited, Err(WaitError::TimedOut { seen }) if seen == "1 of 2"));
        assert!(matches!(until(&limit(0), || slowly(|| Look::Done(7))).await, Ok(7)));
        let stopped = limit(0);
        stopped.cancelled.cancel();
        let waited = until::<u8, _>(&stopped, || async { panic!("it was stopped before") }).await;
        assert!(matches!(waited, Err(WaitError::Cancelled { .. })));
    }

    #[tokio::test]
    async fn a_passing_failure_is_borne_and_a_refusal_told() {
        let busy = || Error::Busy { message: "starting".to_owned() };
        let mut looks = 0;
        let waited = until(&limit(60_000), || {
            looks += 1;
            let look = if looks < 3 { Err(busy()) } else { Ok(Look::Done(looks)) };
            async { look }
        })
        .await;
        assert!(matches!(waited, Ok(3)));
        let mut looks = 0;
        let waited = until::<(), _>(&limit(700), || {
            looks += 1;
            let look = if looks < 2 { Ok(Look::NotYet("1 of 2".to_owned())) } else { Err(busy()) };
            async { look }
        })
        .await;
        let Err(WaitError::TimedOut { seen }) = waited else { panic!("nothing came of it") };
        assert_eq!(seen, "1 of 2; asked again, the API server is busy: starting");
        let refused = || Error::Forbidden { message: "no".to_owned() };
        let waited = until::<(), _>(&limit(60_000), || async { Err(refused()) }).await;
        assert!(matches!(waited, Err(WaitError::Api(Error::Forbidden { .. }))));
    }

    #[test]
    fn a_rollout_is_done_only_when_the_new_replicas_serve() {
        let deployment = |status: serde_json::Value| -> Deployment {
            serde_json::from_value(serde_json::json!({
                "metadata": { "generation": 2 }, "spec": { "replicas": 1, "selector": {}, "template": {} }, "status": status
            }))
            .expect("a deployment")
        };
        let done =
            serde_json::json!({ "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 });
        assert_eq!(rollout(&deployment(done.clone())), None);
        for (field, value) in
            [("observedGeneration", 1), ("replicas", 2), ("availableReplicas", 0), ("updatedReplicas", 0)]
        {
            let mut status = done.clone();
            status[field] = serde_json::json!(value);
            assert!(rollout(&deployment(status)).is_some(), "{field}");
        }
    }
}
