//! Placement groups by name or id.

use crate::config::Clients;
use crate::error::Error;

const DESCRIBE: &str = "ec2:DescribePlacementGroups";

/// A placement group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementGroup {
    /// `pg-…`
    pub id: String,
    /// Its name.
    pub name: String,
    /// `cluster`, `partition` or `spread`.
    pub strategy: String,
    /// How many partitions it has; none where its strategy is another.
    pub partitions: i32,
    /// Whether instances may be put in it.
    pub available: bool,
}

impl PlacementGroup {
    /// Says whether its instances are close to each other, which not every type can be.
    pub fn is_cluster(&self) -> bool {
        self.strategy == "cluster"
    }
}

/// Finds the placement group with this id, or else with this name.
///
/// # Errors
/// Any failure of the call; a missing group is `None`.
pub async fn find(clients: &Clients, id: Option<&str>, name: Option<&str>) -> Result<Option<PlacementGroup>, Error> {
    clients.pace().describe.take().await;
    let call = clients.ec2().describe_placement_groups();
    let call = match (id, name) {
        (Some(id), _) => call.group_ids(id),
        (None, Some(name)) => call.group_names(name),
        (None, None) => return Ok(None),
    };
    match call.send().await.map_err(|error| Error::from_sdk(DESCRIBE, error)) {
        Ok(answer) => Ok(answer.placement_groups.unwrap_or_default().into_iter().find_map(read)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(group: aws_sdk_ec2::types::PlacementGroup) -> Option<PlacementGroup> {
    Some(PlacementGroup {
        id: group.group_id?,
        name: group.group_name.unwrap_or_default(),
        strategy: group.strategy.map(|strategy| strategy.as_str().to_owned()).unwrap_or_default(),
        partitions: group.partition_count.unwrap_or_default(),
        available: group.state.is_some_and(|state| state.as_str() == "available"),
    })
}
