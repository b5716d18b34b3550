//! The kinds of data source, one file each.

pub mod cluster;
mod instance_types;

use std::sync::Arc;

use tfplugin::DataSource;

use crate::provider::Handle;

/// Makes every kind of data source, all on the session that `handle` gives.
pub fn all(handle: &Arc<Handle>) -> Vec<Box<dyn DataSource>> {
    vec![Box::new(cluster::Cluster::new(handle)), Box::new(instance_types::InstanceTypes)]
}
