//! What goes when a pool or a class is destroyed so that another can take its place.

use karp_domain::api::NodeClaim;
use karp_kube::Error;
use kube::Client;
use kube::api::ListParams;

use super::held;
use crate::resources::listed;

/// An object that is destroyed for another to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its kind, as the API names it.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The attributes that are not changed in place.
    pub because: Vec<String>,
    /// What becomes of its nodes.
    pub ending: Ending,
    /// Its nodes; nothing while the cluster is not known, or why they could not be looked at.
    pub nodes: Option<Result<Nodes, String>>,
}

/// What becomes of the nodes of an object that is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The pool's budgets let them go one after the other.
    Drained,
    /// All are asked to leave at once.
    Hurried,
    /// The object waits until others have ended them.
    AwaitedBy,
}

/// The nodes of an object that is destroyed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// How many.
    pub count: usize,
    /// What holds pods on them; empty where nothing does.
    pub held: String,
}

impl Nodes {
    /// Looks at the nodes of a selector, and at what holds pods on them.
    pub async fn look(client: &Client, selector: &str) -> Result<Self, Error> {
        let claims = listed::<NodeClaim>(client, &ListParams::default().labels(selector)).await?;
        let held = if claims.is_empty() { String::new() } else { held(client, selector).await? };
        Ok(Self { count: claims.len(), held })
    }
}
