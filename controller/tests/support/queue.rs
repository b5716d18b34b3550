//! A queue that answers as SQS does, as fast as it is asked: the emulator takes longer over a thousand messages than a controller may.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Messages that SQS gives at most by one answer.
const MOST: usize = 10;

/// The queue; it ends with the runtime of its test.
#[derive(Clone)]
pub struct Queue {
    /// Where it listens, for `AWS_ENDPOINT_URL_SQS`.
    pub endpoint: String,
    state: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    messages: Mutex<Messages>,
    came: Notify,
}

#[derive(Default)]
struct Messages {
    waiting: VecDeque<String>,
    /// Receipts of those that were given and not deleted: in the time of a test none comes again.
    given: BTreeSet<String>,
    sent: usize,
}

impl Shared {
    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Opens an empty queue on a free port.
    pub async fn open() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::<Shared>::default();
        let routes = Router::new().route("/", post(answer)).with_state((endpoint.clone(), state.clone()));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { endpoint, state }
    }

    /// Puts messages into the queue.
    pub fn send(&self, bodies: impl IntoIterator<Item = String>) {
        self.state.messages().waiting.extend(bodies);
        self.state.came.notify_one();
    }

    /// Returns how many messages the queue has, those in somebody's hands included.
    pub fn queued(&self) -> usize {
        let messages = self.state.messages();
        messages.waiting.len() + messages.given.len()
    }
}

async fn answer(
    State((endpoint, state)): State<(String, Arc<Shared>)>,
    headers: HeaderMap,
    body: String,
) -> impl IntoResponse {
    let asked: Value = serde_json::from_str(&body).expect("JSON");
    let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let answer = match target {
        "AmazonSQS.GetQueueUrl" => {
            json!({ "QueueUrl": format!("{endpoint}/1/{}", asked["QueueName"].as_str().unwrap_or_default()) })
        }
        "AmazonSQS.ReceiveMessage" => json!({ "Messages": receive(&state, &asked).await }),
        "AmazonSQS.DeleteMessageBatch" => json!({ "Successful": delete(&state, &asked), "Failed": [] }),
        "AmazonSQS.GetQueueAttributes" => json!({ "Attributes": {} }),
        other => panic!("this queue does not know {other}"),
    };
    ([(header::CONTENT_TYPE, "application/x-amz-json-1.0")], answer.to_string())
}

/// Waits as long as it is asked to for the first message; answers what is there then.
async fn receive(state: &Shared, asked: &Value) -> Vec<Value> {
    let patience = Duration::from_secs(asked["WaitTimeSeconds"].as_u64().unwrap_or_default());
    let comes = async {
        while state.messages().waiting.is_empty() {
            state.came.notified().await;
        }
    };
    // When nothing comes the answer is empty.
    drop(tokio::time::timeout(patience, comes).await);
    let most = asked["MaxNumberOfMessages"].as_u64().map_or(1, |most| most as usize).min(MOST);
    let mut messages = state.messages();
    let count = most.min(messages.waiting.len());
    let bodies: Vec<String> = messages.waiting.drain(..count).collect();
    let mut given = Vec::new();
    for body in bodies {
        messages.sent += 1;
        let receipt = format!("receipt-{}", messages.sent);
        given.push(json!({ "MessageId": &receipt, "ReceiptHandle": &receipt, "Body": body }));
        messages.given.insert(receipt);
    }
    given
}

fn delete(state: &Shared, asked: &Value) -> Vec<Value> {
    let mut messages = state.messages();
    let entries = asked["Entries"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            messages.given.remove(entry["ReceiptHandle"].as_str().unwrap_or_default());
            json!({ "Id": entry["Id"] })
        })
        .collect()
}
