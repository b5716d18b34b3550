//! What a teardown would end, told without ending anything (`dry_run`).

use std::collections::BTreeSet;
use std::fmt;

use karp_domain::orphans::What;
use kube::Client;
use tfplugin::{Attribute, Type, Value};

use super::custom_object::failure;
use super::node_claims::{self, Ask, counted};
use crate::aws::leftovers::{self, Leftovers};
use crate::report::Failure;
use crate::session::Session;

/// What is there of a cluster's nodes.
#[derive(Debug, Default)]
pub struct Rehearsal {
    claims: Vec<String>,
    leftovers: Leftovers,
}

/// Declares what would be ended.
pub fn attribute() -> Attribute {
    let ids =
        |name: &'static str, what: &str| (name, Attribute::list(Type::String).computed().describe(what.to_owned()));
    Attribute::nested_single([
        ids("node_claims", "NodeClaims, which would be drained."),
        ids("instances", "Instances that are still there then."),
        ids("network_interfaces", "Network interfaces that nothing uses then."),
        ids("volumes", "Volumes that nothing uses then."),
        ids("launch_templates", "Launch templates."),
        ids("instance_profiles", "Instance profiles that the controller made."),
    ])
    .computed()
    .describe("With `dry_run`, what a destroy would end, as of the last refresh: only kinds that are in `sweep`. Null without.")
}

impl Rehearsal {
    /// Looks what there is; without a client the cluster is gone already.
    pub async fn of(
        session: &Session,
        client: Option<&Client>,
        cluster: &str,
        kinds: &BTreeSet<What>,
    ) -> Result<Self, Failure> {
        let claims = match client {
            Some(client) => node_claims::left_of_all(client, Ask::Nobody)
                .await
                .map_err(|error| failure(format!("list the NodeClaims of cluster {cluster:?}"), error))?
                .claims()
                .to_vec(),
            None => Vec::new(),
        };
        let leftovers = match kinds.is_empty() {
            true => Leftovers::default(),
            false => leftovers::find(session.aws().await?, cluster, kinds).await?,
        };
        Ok(Self { claims, leftovers })
    }

    /// Tells whether there is nothing to end.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.leftovers.is_empty()
    }

    /// Writes it for the state.
    pub fn into_value(self) -> Value {
        let list = |ids: Vec<String>| Value::List(ids.into_iter().map(Value::from).collect());
        let mut value = Value::object([("node_claims", list(self.claims))]);
        for what in What::ALL {
            let left = self.leftovers.0.get(&what).into_iter().flatten();
            value.set(what.name(), list(left.map(|one| one.id.clone()).collect()));
        }
        value
    }
}

impl fmt::Display for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; in AWS: {}", counted("NodeClaim", &self.claims), self.leftovers)
    }
}
