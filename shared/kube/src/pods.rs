//! What is to be learnt of pods that do not run: the reason, their last words, and the last warning about them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};

use crate::Error;

/// So many pods are told of: they mostly have the same trouble.
const SHOWN: usize = 3;
/// What is shown of a line of a log.
const LINE: usize = 300;
/// Lines are asked for up to this many; the last one that is not empty is shown.
const LINES: i64 = 5;

/// Lists the pods of a Deployment.
async fn of(client: &Client, namespace: &str, deployment: &Deployment) -> Result<Vec<Pod>, Error> {
    let labels = deployment.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    let selector = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    Ok(pods.list(&ListParams::default().labels(&selector)).await?.items)
}

/// Gives the names by which the replicas of a Deployment tell that they lead, as far as they are there to stay: their own, and in the
/// network of a node the node's, which is what a process there takes its host for.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn hosts(client: &Client, namespace: &str, name: &str) -> Result<BTreeSet<String>, Error> {
    let Some(deployment) = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(name).await? else {
        return Ok(BTreeSet::new());
    };
    let pods = of(client, namespace, &deployment).await?;
    Ok(pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).flat_map(names).collect())
}

fn names(pod: &Pod) -> Vec<String> {
    let node = pod.spec.as_ref().filter(|spec| spec.host_network == Some(true)).and_then(|spec| spec.node_name.clone());
    std::iter::once(pod.name_any()).chain(node).collect()
}

/// Tells why pods of a Deployment do not run: the part that a user can act upon. Each begins with `; `.
pub(crate) async fn reasons(client: &Client, namespace: &str, deployment: &Deployment) -> Result<String, Error> {
    let pods = of(client, namespace, deployment).await?;
    let told = pods.iter().filter_map(|pod| Some(format!("; pod {}: {}", pod.name_any(), reason(pod)?)));
    Ok(told.take(SHOWN).collect())
}

/// Tells what is known of each pod of a Deployment that is not ready, one line a pod: its reason, the last line of its log and the last
/// warning about it, as far as there are any.
pub async fn troubles(client: &Client, namespace: &str, deployment: &Deployment) -> Result<Vec<String>, Error> {
    let pods = of(client, namespace, deployment).await?;
    let mut told = Vec::new();
    for pod in pods.iter().filter(|pod| !is_ready(pod)).take(SHOWN) {
        let mut line = format!("pod {}: {}", pod.name_any(), reason(pod).unwrap_or_else(|| "not ready".to_owned()));
        if let Some(words) = last_words(client, namespace, pod).await {
            let _ = write!(line, "; last line of its log: {words}");
        }
        if let Some(warning) = last_warning(client, namespace, pod).await {
            let _ = write!(line, "; last event: {warning}");
        }
        told.push(line);
    }
    Ok(told)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Reads why a pod does not run; nothing where its status does not say.
fn reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref().map(|w| (w.reason.clone(), w.message.clone()));
        let ended = state.terminated.as_ref().map(|t| (t.reason.clone(), t.message.clone()));
        let last = || {
            let last = container.last_state.as_ref()?.terminated.as_ref()?;
            Some(format!(", last exit {}", last.exit_code))
        };
        let (reason, message) = waiting.or(ended)?;
        Some(format!("{} {}{}", reason.unwrap_or_default(), message.unwrap_or_default(), last().unwrap_or_default()))
    });
    let scheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    let reason = container.or_else(|| scheduled?.message.clone())?;
    Some(reason.trim().to_owned())
}

/// Reads the last line that a pod's container logged, in the life before where it waits for its next one.
async fn last_words(client: &Client, namespace: &str, pod: &Pod) -> Option<String> {
    let began = |previous: bool| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        statuses.into_iter().any(|container| match previous {
            true => container.restart_count > 0,
            false => container.state.as_ref().is_some_and(|state| state.waiting.is_none()),
        })
    };
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    for previous in [false, true] {
        if !began(previous) {
            continue;
        }
        let params = LogParams { previous, tail_lines: Some(LINES), ..LogParams::default() };
        let text = pods.logs(&pod.name_any(), &params).await.unwrap_or_default();
        if let Some(line) = text.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
            return Some(line.chars().take(LINE).collect());
        }
    }
    None
}

/// Reads the newest warning about a pod.
async fn last_warning(client: &Client, namespace: &str, pod: &Pod) -> Option<String> {
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let about = format!("involvedObject.name={},type=Warning", pod.name_any());
    let all = events.list(&ListParams::default().fields(&about)).await.ok()?.items;
    let time = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or_else(|| event.event_time.as_ref().map(|time| time.0))
    };
    let newest = all.into_iter().max_by_key(time)?;
    let message = newest.message.unwrap_or_default();
    Some(format!("{} {}", newest.reason.unwrap_or_default(), message.trim()).trim().chars().take(LINE).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).expect("a pod")
    }

    #[test]
    fn a_reason_is_what_holds_the_container_or_else_the_scheduler() {
        let unscheduled = json!({ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" });
        let told = |status: &Value| reason(&pod(status));
        assert_eq!(told(&json!({ "conditions": [unscheduled] })).as_deref(), Some("0/3 nodes are available"));
        let crashing = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s" } },
            "lastState": { "terminated": { "exitCode": 101 } } });
        let status = json!({ "containerStatuses": [crashing] });
        assert_eq!(told(&status).as_deref(), Some("CrashLoopBackOff back-off 40s, last exit 101"));
        assert_eq!(told(&json!({ "conditions": [{ "type": "Ready", "status": "False" }] })), None);
    }

    #[test]
    fn a_pod_that_serves_has_no_trouble() {
        assert!(is_ready(&pod(&json!({ "conditions": [{ "type": "Ready", "status": "True" }] }))));
        assert!(!is_ready(&pod(&json!({ "conditions": [{ "type": "Ready", "status": "False" }] }))));
        assert!(!is_ready(&pod(&json!({}))));
    }
}
