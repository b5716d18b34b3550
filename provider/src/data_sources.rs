//! The kinds of data source, one file each.

mod amis;
pub mod cluster;
pub mod disruption_preview;
mod instance_types;
mod nodes;
mod orphans;

use std::sync::Arc;

use tfplugin::DataSource;

use crate::provider::Handle;

/// Makes every kind of data source, all on the session that `handle` gives.
pub fn all(handle: &Arc<Handle>) -> Vec<Box<dyn DataSource>> {
    vec![
        Box::new(amis::Amis::new(handle)),
        Box::new(cluster::Cluster::new(handle)),
        Box::new(disruption_preview::DisruptionPreview::new(handle)),
        Box::new(instance_types::InstanceTypes),
        Box::new(nodes::Nodes::new(handle)),
        Box::new(orphans::Orphans::new(handle)),
    ]
}
