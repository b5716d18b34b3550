//! What exists in the sandbox's AWS, so that the demo can tell what a destroy left behind.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// An account has one service-linked role for each service; it stays when what made it goes.
const SERVICE_LINKED: &str = "AWSServiceRoleFor";

/// An EC2 instance that is neither terminated nor about to be.
#[derive(Debug, Clone, Deserialize)]
pub struct Instance {
    /// Instance id.
    pub id: String,
    /// Where it is in its life, as EC2 says it.
    state: String,
    /// What it costs in dollars per hour, by the emulator's price list.
    price: f64,
}

/// Everything that the emulator lists: the kind, then the identities of that kind.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    things: BTreeMap<String, BTreeSet<String>>,
    /// Instances that run or are about to.
    pub instances: Vec<Instance>,
}

impl Inventory {
    /// Asks the emulator.
    ///
    /// # Errors
    /// When it does not answer, or not as an inventory.
    pub async fn read(endpoint: &str) -> Result<Self> {
        let things = crate::http::get(&format!("{endpoint}/_karp/inventory")).await?;
        let instances = crate::http::get(&format!("{endpoint}/_karp/instances")).await?;
        Self::parse(&things, &instances).context("reading the emulator's inventory")
    }

    fn parse(things: &str, instances: &str) -> Result<Self> {
        let mut things: BTreeMap<String, BTreeSet<String>> = serde_json::from_str(things)?;
        things.values_mut().for_each(|names| names.retain(|name| !name.starts_with(SERVICE_LINKED)));
        let mut instances: Vec<Instance> = serde_json::from_str(instances)?;
        instances.retain(|instance| matches!(instance.state.as_str(), "pending" | "running"));
        Ok(Self { things, instances })
    }

    /// Names what is here and was not there before, as `kind identity`.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        let none = BTreeSet::new();
        self.things
            .iter()
            .flat_map(|(kind, now)| {
                let then = before.things.get(kind).unwrap_or(&none);
                now.difference(then).map(move |identity| format!("{kind} {identity}"))
            })
            .collect()
    }

    /// Adds up what the running instances cost, in dollars per hour.
    pub fn price(&self) -> f64 {
        self.instances.iter().map(|instance| instance.price).sum()
    }

    /// Finds the price of one instance, in dollars per hour.
    pub fn price_of(&self, id: &str) -> Option<f64> {
        self.instances.iter().find(|instance| instance.id == id).map(|instance| instance.price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_destroy_left_is_named_with_its_kind() {
        let seed = Inventory::parse(r#"{"roles":["cluster-role"],"instances":[]}"#, "[]").unwrap();
        let after = Inventory::parse(
            r#"{"roles":["cluster-role","left-role"],"instances":["i-1"]}"#,
            r#"[{"id":"i-1","state":"running","price":0.1},{"id":"i-0","state":"terminated","price":0.2}]"#,
        )
        .unwrap();
        assert_eq!(after.beyond(&seed), ["instances i-1", "roles left-role"]);
        assert!(seed.beyond(&after).is_empty());
        assert_eq!(after.price_of("i-1"), Some(0.1));
        assert!((after.price() - 0.1).abs() < 1e-9);
    }
}
