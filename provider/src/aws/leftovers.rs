//! What controllers made for a cluster's nodes and may have left behind: found by `karp_aws::leftovers`, and ended here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use karp_aws::{instance_profiles, instances, launch_template};
use karp_domain::orphans::{Left, What};
use tfplugin::Context;

use super::wait::{detached, detached_within, until};
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// So many names of one kind are shown.
const SHOWN: usize = 5;
/// An interface or a volume may stay attached for a while after its instance has ended.
const DETACH: Duration = Duration::from_secs(120);

/// What is left, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers(pub BTreeMap<What, Vec<Left>>);

impl Leftovers {
    /// Tells whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    fn ids(&self, what: What) -> Vec<String> {
        self.0.get(&what).into_iter().flatten().map(|left| left.id.clone()).collect()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.0.iter().filter(|(_, left)| !left.is_empty()).map(|(what, left)| {
            let names: Vec<&str> = left.iter().take(SHOWN).map(|left| left.id.as_str()).collect();
            let more = if left.len() > SHOWN { ", …" } else { "" };
            let what = what.name().replace('_', " ");
            let what = if left.len() == 1 { what.trim_end_matches('s') } else { &what };
            format!("{} {what} ({}{more})", left.len(), names.join(", "))
        });
        let told: Vec<String> = told.collect();
        f.write_str(if told.is_empty() { "nothing" } else { "" })?;
        f.write_str(&told.join(", "))
    }
}

/// Finds what is there of these kinds.
pub async fn find(aws: &Aws, cluster: &str, kinds: &BTreeSet<What>) -> Result<Leftovers, Failure> {
    let mut found = Leftovers::default();
    for what in kinds {
        let left = karp_aws::leftovers::find(aws.clients(), cluster, *what).await;
        let doing = || format!("list the {} of cluster {cluster:?}", what.name().replace('_', " "));
        found.0.insert(*what, left.map_err(|e| Failure::from_aws(doing(), e))?);
    }
    Ok(found)
}

/// Ends what is there of these kinds, in order, and says what it was.
pub async fn sweep(aws: &Aws, ctx: &Context, cluster: &str, kinds: &BTreeSet<What>) -> Result<Leftovers, Failure> {
    let mut swept = Leftovers::default();
    for what in kinds {
        let found = find(aws, cluster, &BTreeSet::from([*what])).await?;
        if !found.is_empty() {
            tracing::info!(cluster, left = %found, "sweeping");
        }
        let ids = found.ids(*what);
        match what {
            What::Instances => end(aws, ctx, cluster, &ids).await?,
            What::NetworkInterfaces => each(&ids, |id| delete_interface(aws, ctx, id)).await?,
            What::Volumes => each(&ids, |id| delete_volume(aws, ctx, id)).await?,
            What::LaunchTemplates => {
                let gone = |id: String| async move {
                    let gone = launch_template::delete(aws.clients(), &id).await;
                    gone.map_err(|e| Failure::from_aws(format!("delete launch template {id}"), e))
                };
                each(&ids, gone).await?;
            }
            What::InstanceProfiles => {
                let gone = |name: String| async move {
                    let doing = format!("delete instance profile {name:?}");
                    detached(ctx, &doing, || async {
                        let gone = Box::pin(instance_profiles::delete(aws.clients(), &name)).await;
                        gone.map_err(|e| Failure::from_aws(&doing, e))
                    })
                    .await
                };
                each(&ids, gone).await?;
            }
        }
        swept.0.extend(found.0);
    }
    Ok(swept)
}

async fn each<F>(ids: &[String], mut gone: impl FnMut(String) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    for id in ids {
        gone(id.clone()).await?;
    }
    Ok(())
}

/// Ends instances and waits until EC2 says that they are ended, those of the cluster among them that were shutting down already: their
/// interfaces, volumes and groups are free only then.
async fn end(aws: &Aws, ctx: &Context, cluster: &str, ids: &[String]) -> Result<(), Failure> {
    let listed = karp_aws::leftovers::instances(aws.clients(), cluster).await;
    let listed = listed.map_err(|e| Failure::from_aws(format!("list the instances of cluster {cluster:?}"), e))?;
    let going = listed.into_iter().filter(|one| one.state.is_ending()).map(|one| one.id);
    let all: BTreeSet<String> = going.chain(ids.iter().cloned()).collect();
    let all = Vec::from_iter(all);
    if all.is_empty() {
        return Ok(());
    }
    let doing = format!("end {} instances", all.len());
    for (id, answer) in instances::terminate(aws.clients(), ids).await {
        match answer.map_err(|e| Failure::from_aws(format!("end instance {id}"), e)) {
            Err(failure) if !failure.is_missing() => return Err(failure),
            _ => {}
        }
    }
    let limit = ctx.remaining();
    until(ctx.stop(), limit, &doing, || async {
        let left = instances::describe(aws.clients(), &all).await.map_err(|e| Failure::from_aws(&doing, e))?;
        Ok(left.iter().all(|one| one.state == instances::State::Terminated).then_some(()))
    })
    .await
}

async fn delete_interface(aws: &Aws, ctx: &Context, id: String) -> Result<(), Failure> {
    let doing = format!("delete network interface {id}");
    detached_within(ctx, DETACH, &doing, || async {
        let answer = aws.ec2().delete_network_interface().network_interface_id(&id).send().await;
        answer.map(drop).map_err(|e| attached(Failure::aws(&doing, e)))
    })
    .await
}

async fn delete_volume(aws: &Aws, ctx: &Context, id: String) -> Result<(), Failure> {
    let doing = format!("delete volume {id}");
    detached_within(ctx, DETACH, &doing, || async {
        let answer = aws.ec2().delete_volume().volume_id(&id).send().await;
        answer.map(drop).map_err(|e| Failure::aws(&doing, e))
    })
    .await
}

/// Reads what EC2 says of an interface that is still attached under a code that says no more than that a parameter is wrong.
fn attached(failure: Failure) -> Failure {
    let in_use = failure.kind == Kind::Invalid && failure.message.contains("currently in use");
    if in_use { failure.of_kind(Kind::InUse) } else { failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_attached_is_in_use() {
        for (code, message, kind) in [
            ("InvalidParameterValue", "Network interface 'eni-1' is currently in use.", Kind::InUse),
            ("InvalidNetworkInterface.InUse", "m", Kind::InUse),
            ("VolumeInUse", "Volume vol-1 is currently attached to i-1", Kind::InUse),
            ("InvalidParameterValue", "m", Kind::Invalid),
            ("InvalidVolume.NotFound", "m", Kind::Missing),
        ] {
            let failure = Failure::from_aws("x", karp_aws::Error::from_code("ec2:Test", code, message.to_owned()));
            assert_eq!(attached(failure).kind, kind, "{code}: {message}");
        }
    }

    #[test]
    fn what_is_left_is_told_by_count_and_some_names() {
        let left = |id: usize| Left::new(What::Instances, format!("i-{id}"));
        let mut all = Leftovers::default();
        assert_eq!((all.is_empty(), all.to_string()), (true, "nothing".to_owned()));
        all.0.insert(What::LaunchTemplates, Vec::new());
        all.0.insert(What::Instances, (0..6).map(left).collect());
        assert_eq!(all.to_string(), "6 instances (i-0, i-1, i-2, i-3, i-4, …)");
    }
}
