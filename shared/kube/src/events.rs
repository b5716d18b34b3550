//! Events about objects: what whoever watches the cluster is told of.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::Error;

/// Events of objects that have no namespace are kept here, as those of Nodes are.
const NAMESPACE: &str = "default";
/// The API server refuses longer notes.
const NOTE_BYTES: usize = 1024;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It goes as it should.
    Normal,
    /// Somebody may want to look.
    Warning,
}

/// Writes an event about an object.
///
/// # Errors
/// When the API server does not take it.
pub async fn tell(
    client: &Client,
    source: &str,
    about: &ObjectReference,
    weight: Weight,
    reason: &str,
    note: &str,
) -> Result<(), Error> {
    let namespace = about.namespace.as_deref().unwrap_or(NAMESPACE);
    let now = Some(Time(Timestamp::now()));
    let event = Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", about.name.as_deref().unwrap_or_default())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: about.clone(),
        type_: Some(format!("{weight:?}")),
        reason: Some(reason.to_owned()),
        message: Some(cut(note).to_owned()),
        source: Some(EventSource { component: Some(source.to_owned()), host: None }),
        first_timestamp: now.clone(),
        last_timestamp: now,
        count: Some(1),
        ..Event::default()
    };
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &event).await?;
    Ok(())
}

/// Cuts a note where the API server would refuse it, between two characters.
fn cut(note: &str) -> &str {
    let end = (0..=NOTE_BYTES.min(note.len())).rev().find(|at| note.is_char_boundary(*at));
    &note[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(NOTE_BYTES);
        assert_eq!(cut(&format!("a{long}")).len(), NOTE_BYTES - 1);
        assert_eq!(cut(&long).len(), NOTE_BYTES);
    }
}
