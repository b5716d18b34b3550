//! The interruption queue.

use crate::config::Clients;
use crate::error::Error;
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, QueueAttributeName};
use std::collections::BTreeMap;

const GET_URL: &str = "sqs:GetQueueUrl";
const RECEIVE: &str = "sqs:ReceiveMessage";
const DELETE: &str = "sqs:DeleteMessage";
const ATTRIBUTES: &str = "sqs:GetQueueAttributes";
/// SQS's own bounds: messages a call, and seconds that a call may wait for one.
const BATCH: usize = 10;
const LONG_POLL_SECONDS: i32 = 20;
/// Received messages stay hidden for this long while they are handled; unhandled ones come back.
const VISIBILITY_SECONDS: i32 = 20;

/// A queue that was found.
#[derive(Debug, Clone)]
pub struct Queue {
    clients: Clients,
    url: String,
}

/// A received message; it comes back unless [`Queue::delete`] is given its receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// SQS's id of the message.
    pub id: String,
    /// What deletes it.
    pub receipt: String,
    /// The body: an EventBridge event in JSON, if all is well.
    pub body: String,
}

impl Queue {
    /// Finds the queue called `name` in the clients' account and region; a queue URL is taken as it is.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, and any failure of the call.
    pub async fn open(clients: &Clients, name: &str) -> Result<Self, Error> {
        if name.starts_with("http://") || name.starts_with("https://") {
            return Ok(Self { clients: clients.clone(), url: name.to_owned() });
        }
        let answer = clients
            .sqs()
            .get_queue_url()
            .queue_name(name)
            .send()
            .await
            .map_err(|error| Error::from_sdk(GET_URL, error))?;
        let url = answer.queue_url.ok_or_else(|| Error::malformed(GET_URL, "the answer holds no URL"))?;
        Ok(Self { clients: clients.clone(), url })
    }

    /// Returns the queue's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits up to 20 s for messages and returns at most ten; none after that time is an empty answer.
    ///
    /// # Errors
    /// Any failure of the call.
    pub async fn receive(&self) -> Result<Vec<Message>, Error> {
        let answer = self
            .clients
            .sqs()
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(BATCH as i32)
            .wait_time_seconds(LONG_POLL_SECONDS)
            .visibility_timeout(VISIBILITY_SECONDS)
            .send()
            .await
            .map_err(|error| Error::from_sdk(RECEIVE, error))?;
        let read = |message: aws_sdk_sqs::types::Message| {
            Some(Message {
                id: message.message_id.unwrap_or_default(),
                receipt: message.receipt_handle?,
                body: message.body.unwrap_or_default(),
            })
        };
        Ok(answer.messages.unwrap_or_default().into_iter().filter_map(read).collect())
    }

    /// Deletes the messages with these receipts and returns how many SQS refused to delete (they come back).
    ///
    /// # Errors
    /// Any failure of a call; messages of earlier batches are then deleted.
    pub async fn delete(&self, receipts: &[String]) -> Result<usize, Error> {
        let mut refused = 0;
        for batch in receipts.chunks(BATCH) {
            let entry = |(index, receipt): (usize, &String)| {
                DeleteMessageBatchRequestEntry::builder()
                    .id(index.to_string())
                    .receipt_handle(receipt)
                    .build()
                    .map_err(|error| Error::malformed(DELETE, error.to_string()))
            };
            let entries = batch.iter().enumerate().map(entry).collect::<Result<Vec<_>, _>>()?;
            let answer = self
                .clients
                .sqs()
                .delete_message_batch()
                .queue_url(&self.url)
                .set_entries(Some(entries))
                .send()
                .await
                .map_err(|error| Error::from_sdk(DELETE, error))?;
            refused += answer.failed.len();
        }
        Ok(refused)
    }

    /// Returns all of the queue's attributes by name, as `QueueArn` or `ApproximateNumberOfMessages`.
    ///
    /// # Errors
    /// Any failure of the call.
    pub async fn attributes(&self) -> Result<BTreeMap<String, String>, Error> {
        let answer = self
            .clients
            .sqs()
            .get_queue_attributes()
            .queue_url(&self.url)
            .attribute_names(QueueAttributeName::All)
            .send()
            .await
            .map_err(|error| Error::from_sdk(ATTRIBUTES, error))?;
        let attributes = answer.attributes.unwrap_or_default();
        Ok(attributes.into_iter().map(|(name, value)| (name.as_str().to_owned(), value)).collect())
    }
}
