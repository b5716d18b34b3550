//! The queue of interruptions may not be read, or is not there.

use std::time::Duration;

use karp_domain::api::{Ec2NodeClass, conditions};
use kube::Api;
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::support::stand::Stand;
use crate::support::until_within;

/// A poll takes twenty seconds, and three must fail, ten seconds apart.
const PATIENCE: Duration = Duration::from_secs(150);

/// Classes say why, and nodes come all the same; when it can be read again, nothing is said any more.
pub async fn unread(stand: &Stand) {
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let said = async || {
        let status = classes.get(&stand.name).await.expect("the class").status?;
        let condition = conditions::get(&status.conditions, "InterruptionQueueReady")?;
        assert_eq!(condition.status, conditions::ConditionStatus::False);
        Some(condition.message.clone())
    };
    let of_queue = |rule: &Value| {
        let mut whole = json!({ "action": "ReceiveMessage", "where": stand.aws.queue });
        whole.as_object_mut().expect("a rule").extend(rule.as_object().cloned().expect("a rule"));
        whole
    };
    let well = of_queue(&json!({ "times": 0 }));
    for (code, status) in [("AccessDenied", 403), ("QueueDoesNotExist", 400)] {
        let fails = of_queue(&json!({ "code": code, "status": status, "times": 1000 }));
        stand.aws.door("fail", &json!([well, fails]));
        until_within(PATIENCE, &format!("the class tells of {code}"), async || {
            said().await.is_some_and(|message| message.contains("sqs:ReceiveMessage") && message.contains(code))
        })
        .await;
    }
    let scene = Scene::on_demand(stand, "unread", &["m5n.xlarge"]).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    stand.aws.door("fail", &json!([well]));
    until_within(PATIENCE, "the class does not tell of the queue any more", async || said().await.is_none()).await;
}
