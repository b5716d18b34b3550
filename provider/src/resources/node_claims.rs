//! What the cluster still holds of a pool or of all pools: NodeClaims, their Nodes, and a controller that works on them.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use karp_domain::api::{NodeClaim, labels};
use karp_kube::Error;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};

/// The controller's lease.
const LEASE: &str = "karpenter-leader-election";
/// So many names are shown; more would hide the point.
const SHOWN: usize = 5;

/// NodeClaims and Nodes that are still there.
pub struct Left {
    claims: Vec<String>,
    nodes: Vec<String>,
}

impl Left {
    /// Tells whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.nodes.is_empty()
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", counted("NodeClaim", &self.claims), counted("Node", &self.nodes))
    }
}

/// Counts objects and names some of them: `2 Nodes (a, b)`.
pub fn counted(kind: &str, names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let plural = if names.len() == 1 { "" } else { "s" };
    let shown = match names.len() {
        0 => String::new(),
        count if count > SHOWN => format!(" ({shown}, …)"),
        _ => format!(" ({shown})"),
    };
    format!("{} {kind}{plural}{shown}", names.len())
}

/// Lists what is left under a label selector; with `delete`, NodeClaims that nobody has deleted yet are.
pub async fn left(client: &Client, selector: &str, delete: bool) -> Result<Left, Error> {
    let params = ListParams::default().labels(selector);
    let api = Api::<NodeClaim>::all(client.clone());
    let claims = match api.list(&params).await.map_err(Error::from) {
        Ok(list) => list.items,
        // Without the CRD there are none.
        Err(Error::UnknownKind { .. } | Error::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    if delete {
        for claim in claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
            match api.delete(&claim.name_any(), &DeleteParams::default()).await.map_err(Error::from) {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let nodes = Api::<Node>::all(client.clone()).list(&params).await?.items;
    Ok(Left {
        claims: claims.iter().map(ResourceExt::name_any).collect(),
        nodes: nodes.iter().map(ResourceExt::name_any).collect(),
    })
}

/// Names the NodeClaims that the controller is responsible for.
pub async fn live(client: &Client) -> Result<Vec<String>, Error> {
    let api = Api::<NodeClaim>::all(client.clone());
    match api.list(&ListParams::default()).await.map_err(Error::from) {
        Ok(list) => {
            let ours = list.items.iter().filter(|claim| claim.spec.node_class_ref.group == labels::AWS_GROUP);
            Ok(ours.map(ResourceExt::name_any).collect())
        }
        Err(Error::UnknownKind { .. } | Error::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Tells whether a controller has renewed its lease lately, in any namespace. In doubt it lives.
pub async fn controller_lives(client: &Client, patience: Duration) -> bool {
    let params = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let Ok(leases) = Api::<Lease>::all(client.clone()).list(&params).await else { return true };
    leases.items.iter().any(|lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        renewed.is_some_and(|renewed| {
            let age = Timestamp::now().duration_since(renewed.0);
            age.unsigned_abs() < patience
        })
    })
}
