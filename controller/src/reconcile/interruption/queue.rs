//! Whether the queue can be read. As long as it cannot, each node class says so; all other work goes on, and only warnings are missed.

use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::Ec2NodeClass;
use karp_domain::api::conditions::{self, Condition, ConditionStatus, INTERRUPTION_QUEUE_READY};
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::{Context, Error};
use crate::cloud::{CloudError, QueueMessage};
use crate::effect;

/// The reason of the condition.
const UNREAD: &str = "QueueUnreadable";
/// Failures in a row of which it is told: one or two pass.
const LASTING: u32 = 3;
/// Classes that came since, and those that could not be written, are looked at after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// Receives messages, and keeps in mind whether that works.
#[derive(Default)]
pub struct Queue(watch::Sender<Seen>);

#[derive(Default)]
struct Seen {
    /// How often it failed in a row.
    failures: u32,
    /// Whether it can be read, or why not; nothing before that is known: what an earlier process said stands.
    state: Option<Result<(), String>>,
}

impl Queue {
    /// Waits a while for messages; none when there is no queue.
    pub async fn receive(&self, context: &Context) -> Result<Option<Vec<QueueMessage>>, CloudError> {
        let received = context.cloud.receive().await;
        self.note(received.as_ref().err());
        received
    }

    fn note(&self, error: Option<&CloudError>) {
        self.0.send_if_modified(|seen| {
            seen.failures = if error.is_some() { seen.failures.saturating_add(1) } else { 0 };
            if (1..LASTING).contains(&seen.failures) {
                return false;
            }
            let state = Some(error.map_or(Ok(()), |error| Err(error.to_string())));
            let changed = seen.state != state;
            seen.state = state;
            changed
        });
    }

    /// Has the node classes say how it is, until `stop` is cancelled.
    pub async fn tell(&self, context: &Context, stop: &CancellationToken) {
        let mut changes = self.0.subscribe();
        loop {
            let state = changes.borrow_and_update().state.clone();
            if let Some(state) = state {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = say(context, &state) => {}
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
                _ = changes.changed() => {}
            }
        }
    }
}

async fn say(context: &Context, state: &Result<(), String>) {
    for class in context.stores.classes.state() {
        let Some(conditions) = told(&class, state, Timestamp::now()) else { continue };
        let written = effect::write_status(&context.client, &*class, &json!({ "conditions": conditions })).await;
        match written.map_err(Error::from) {
            Err(error) if !error.is_race() => {
                tracing::warn!(EC2NodeClass.name = class.name_any(), %error, "its condition could not be written");
            }
            // what was lost to another writer is written at the next look
            _ => {}
        }
    }
}

/// Returns the conditions of a class as they should be, unless they are. One that was not looked at yet has none.
fn told(class: &Ec2NodeClass, state: &Result<(), String>, now: Timestamp) -> Option<Vec<Condition>> {
    let mut all = class.status.as_ref()?.conditions.clone();
    let changed = match state {
        Ok(()) => conditions::clear(&mut all, INTERRUPTION_QUEUE_READY),
        Err(why) => conditions::set(&mut all, INTERRUPTION_QUEUE_READY, ConditionStatus::False, UNREAD, why, now),
    };
    for one in all.iter_mut().filter(|one| one.kind == INTERRUPTION_QUEUE_READY) {
        one.observed_generation = class.metadata.generation;
    }
    changed.then_some(all)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::super::testing::Server;
    use super::*;

    fn failed(message: &str) -> CloudError {
        CloudError::Refused { reason: "Unauthorized".to_owned(), message: message.to_owned() }
    }

    fn class(name: &str, status: &Value) -> Value {
        let spec = json!({ "amiSelectorTerms": [], "subnetSelectorTerms": [], "securityGroupSelectorTerms": [] });
        let metadata = json!({ "name": name, "generation": 7 });
        json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
            "metadata": metadata, "spec": spec, "status": status,
        })
    }

    #[test]
    fn what_fails_once_or_twice_is_no_news() {
        let queue = Queue::default();
        let state = || queue.0.borrow().state.clone();
        for _ in 1..LASTING {
            queue.note(Some(&failed("denied")));
            assert_eq!(state(), None, "an earlier process may know better");
        }
        queue.note(Some(&failed("denied")));
        assert_eq!(state(), Some(Err("denied".to_owned())));
        queue.note(Some(&failed("no such queue")));
        assert_eq!(state(), Some(Err("no such queue".to_owned())));
        queue.note(None);
        assert_eq!(state(), Some(Ok(())));
        queue.note(Some(&failed("denied")));
        assert_eq!(state(), Some(Ok(())), "it is counted anew");
    }

    #[tokio::test]
    async fn a_class_says_so_for_as_long_as_it_lasts_and_is_ready_all_the_same() {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let server = Server::of([class("default", &json!({ "conditions": [ready] })), class("unseen", &Value::Null)]);
        let conditions = |name: &str| server.get(&format!("ec2nodeclasses/{name}"))["status"]["conditions"].clone();
        let context = server.context().await;
        say(&context, &Err("sqs:ReceiveMessage: AccessDenied: no".to_owned())).await;
        let said = conditions("default");
        assert_eq!(said.as_array().map(Vec::len), Some(2), "{said}");
        let fields = ["type", "status", "reason", "message"].map(|field| said[0][field].as_str().unwrap_or_default());
        assert_eq!(fields, [INTERRUPTION_QUEUE_READY, "False", UNREAD, "sqs:ReceiveMessage: AccessDenied: no"]);
        assert_eq!((&said[0]["observedGeneration"], &said[1]["status"]), (&json!(7), &json!("True")));
        assert_eq!(conditions("unseen"), Value::Null, "nobody has looked at it yet");

        // its caches are those of now
        let context = server.context().await;
        let writes = || server.asked("PATCH ec2nodeclasses/default/status");
        say(&context, &Err("sqs:ReceiveMessage: AccessDenied: no".to_owned())).await;
        assert_eq!(writes(), 1, "nothing is new");
        say(&context, &Ok(())).await;
        assert_eq!(writes(), 2);
        let left = conditions("default");
        assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
        assert_eq!(left[0]["type"], "Ready");
        let context = server.context().await;
        say(&context, &Ok(())).await;
        assert_eq!(writes(), 2, "of what was well nothing is said");
    }

    #[tokio::test]
    async fn nobody_who_is_to_stop_waits_for_an_api_server_that_does_not_answer() {
        let server = Server::of([class("default", &json!({ "conditions": [] }))]);
        server.stall("PATCH ec2nodeclasses/default/status");
        let context = server.context().await;
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        for _ in 0..LASTING {
            queue.note(Some(&failed("denied")));
        }
        // it is said first, and then there is to be an end
        let told = async { tokio::join!(queue.tell(&context, &stop), async { stop.cancel() }) };
        tokio::time::timeout(Duration::from_secs(20), told).await.expect("an end");
    }
}
