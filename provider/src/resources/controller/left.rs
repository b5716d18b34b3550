//! What an update made that ended before its answer, as that of a process that was killed: no state tells of it.

use kube::Client;

use super::{find, is_of_others};
use crate::manifests::controller::{Object, SERVICE_MONITORS, ServiceMonitor, Settings};
use crate::report::{Failure, Kind};

/// Finds a ServiceMonitor of a controller whose settings have none; no other object of karp's comes by an update. What others wrote, too, is theirs; and
/// nothing is left of a kind that nobody serves, or that the caller may not look at.
pub(super) async fn monitor(client: &Client, settings: &Settings) -> Result<Option<Object>, Failure> {
    if settings.service_monitor.is_some() {
        return Ok(None);
    }
    let whole = Settings { service_monitor: Some(ServiceMonitor::default()), ..settings.clone() };
    let Some(object) = whole.objects().into_iter().find(|object| object.plural == SERVICE_MONITORS) else {
        return Ok(None);
    };
    match find(client, &object).await {
        Ok(live) => Ok(live.filter(|live| !is_of_others(live)).map(|_| object)),
        Err(failure) if failure.kind == Kind::Denied => Ok(None),
        Err(failure) => Err(failure),
    }
}
