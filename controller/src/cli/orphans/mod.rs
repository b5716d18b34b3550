//! `karp orphans`: what controllers made in AWS for a cluster's nodes and nothing in the cluster accounts for any more.

mod report;
mod whose;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_aws::{Clients, Error, Settings, instance_profiles, leftovers};
use karp_domain::api::{Ec2NodeClass, NodeClaim};
use karp_domain::lifecycle::provider_id;
use karp_domain::orphans::{Known, Left, What, Why};
use kube::Resource;

use self::report::{Orphan, Report};
use self::whose::Named;
use super::live::{self, Cluster};
use super::text;
use super::world::Output;
use crate::observe::unread::Guarded;
use crate::options::go_duration;

/// The exit code when there are orphans.
const SOME: u8 = 2;

/// Holds the options of `karp orphans`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The EKS cluster; without it the one that the kubeconfig's context names, as `aws eks update-kubeconfig` writes it.
    #[arg(long, env = "CLUSTER_NAME", value_name = "NAME")]
    cluster_name: Option<String>,
    /// The cluster's region; without it that of the kubeconfig's context, AWS_REGION, or the AWS profile.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
    /// The cluster is gone: whatever has its tags is an orphan. EKS is asked whether it really is.
    #[arg(long, requires = "cluster_name", conflicts_with = "context")]
    cluster_gone: bool,
    /// Leave out what is younger than this: it may be on its way in or out.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = go_duration)]
    older_than: Duration,
    /// How the answer is written.
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    output: Output,
}

/// Finds and prints; exit code 0 when there is nothing, 2 when there is something.
///
/// # Errors
/// When any list fails, or it is not sure that AWS and the kubeconfig are asked about the same cluster: never an empty answer then.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let report = live::runtime()?.block_on(find(options))?;
    text::print(options.output, || &report, || report.render())?;
    Ok(if report.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(SOME) })
}

async fn find(options: &Options) -> anyhow::Result<Report> {
    let told = Named { name: options.cluster_name.clone(), region: options.region.clone() };
    let named = if options.cluster_gone { told } else { told.agreed(Named::by_kubeconfig(&options.cluster))? };
    let name = named.name.context(
        "the kubeconfig's context does not name an EKS cluster: say --cluster-name NAME (and --region REGION)",
    )?;
    let settings = Settings { region: named.region, ..Settings::default() };
    let aws = Clients::load(&settings).await.map_err(|error| failed("AWS cannot be asked", &error))?;
    // AWS first: what is made in between is known to the cluster by then
    let mut there = Vec::new();
    for what in What::ALL {
        let found = leftovers::find(&aws, &name, what).await;
        let kind = what.name().replace('_', " ");
        there.extend(found.map_err(|error| failed(&format!("the {kind} of cluster {name} cannot be listed"), &error))?);
    }
    let known = match options.cluster_gone {
        true => {
            whose::gone(&aws, &name).await?;
            None
        }
        false => Some(asked(&aws, &name, &options.cluster, &there).await?),
    };
    let orphaned = |left: Left| left.orphaned(known.as_ref()).map(|why| (left, why));
    let orphans: Vec<(Left, Why)> = there.into_iter().filter_map(orphaned).collect();
    let unclaimed = orphans.iter().any(|(left, _)| left.what == What::Instances);
    if unclaimed && known.is_some_and(|known| known.is_without_claims()) {
        anstream::eprintln!(
            "note: the cluster has no NodeClaim at all; see that they were not lost, with their definition say, before you end instances"
        );
    }
    report(&aws, &name, orphans, options.older_than).await
}

/// Asks the cluster what it knows, and makes sure that it is the one of that name in AWS.
async fn asked(aws: &Clients, name: &str, cluster: &Cluster, there: &[Left]) -> anyhow::Result<Known> {
    let config = cluster.config().await.context("there is no cluster to ask; where it is gone, say --cluster-gone")?;
    let client = live::client(config.clone())?;
    let claims = listed::<NodeClaim, _>(live::every(&client, standing).await)?;
    let classes = listed::<Ec2NodeClass, _>(live::every(&client, named::<Ec2NodeClass>).await)?;
    let nodes = live::every(&client, |node: Node| node.spec.and_then(|spec| spec.provider_id)).await;
    let nodes = nodes.context("nodes cannot be listed, so nothing is known of orphans")?;
    let known = accounting(&claims, &classes, nodes.iter().flatten());
    let ours = |left: &Left| left.what == What::Instances && left.orphaned(Some(&known)).is_none();
    if !there.iter().any(ours) {
        whose::same(aws, name, &config).await?;
    }
    Ok(known)
}

/// Gathers what accounts for things in AWS: claims with their provider ids, node classes, and nodes by theirs.
fn accounting<'a>(
    claims: &[(ObjectMeta, Option<String>)],
    classes: &[ObjectMeta],
    nodes: impl Iterator<Item = &'a String>,
) -> Known {
    let mut known = Known::default();
    claims.iter().for_each(|(claim, id)| known.note_claim(claim.name.as_deref(), id.as_deref()));
    classes.iter().for_each(|class| known.note_class(class.name.as_deref(), class.uid.as_deref()));
    nodes.for_each(|id| known.note_node(id));
    known
}

/// Answers an object's metadata, which can be read of all that the API server admits: what cannot be read as a whole accounts for what was made
/// for it all the same.
fn named<K: Resource>(one: Guarded<K>) -> ObjectMeta {
    one.0.map_or_else(|broken| broken.unread.metadata.clone(), |object| object.meta().clone())
}

/// The same of a claim, with the provider id of the instance that it stands for.
fn standing(one: Guarded<NodeClaim>) -> (ObjectMeta, Option<String>) {
    let claim = one.0.as_ref().ok().or_else(|| one.0.as_ref().err()?.stand_in.as_ref());
    let id = claim.and_then(provider_id).map(str::to_owned);
    (named(one), id)
}

/// Names the kind that cannot be listed; a cluster that does not know it may be another one.
fn listed<K: Resource<DynamicType = ()>, T>(listed: kube::Result<Vec<T>>) -> anyhow::Result<Vec<T>> {
    let kind = K::plural(&());
    listed.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => anyhow::anyhow!(
            "the cluster does not know {kind}, so nothing is known of orphans: choose its --context, or install karp's definitions \
             (karp crds | kubectl apply --server-side -f -)"
        ),
        error => anyhow::anyhow!("{kind} cannot be listed, so nothing is known of orphans: {error}"),
    })
}

/// Leaves out what is young, and gathers what ends the rest.
async fn report(aws: &Clients, name: &str, orphans: Vec<(Left, Why)>, older_than: Duration) -> anyhow::Result<Report> {
    let now = Timestamp::now();
    let than = SignedDuration::try_from(older_than)?;
    let all = orphans.len();
    let mut report = Report::new(name, aws.region());
    for (left, why) in orphans.into_iter().filter(|(left, _)| left.is_older(than, now)) {
        let mut role = None;
        if left.what == What::InstanceProfiles {
            let found = instance_profiles::find(aws, &left.id).await;
            let found =
                found.map_err(|error| failed(&format!("instance profile {} cannot be read", left.id), &error))?;
            role = found.and_then(|profile| profile.role);
        }
        report.add(Orphan::new(&left, why, role.as_deref(), aws.region(), now));
    }
    match all - report.len() {
        0 => {}
        young => anstream::eprintln!(
            "note: {} left out, as younger than {than:#}; --older-than 0s shows all",
            text::counted(young, "orphan")
        ),
    }
    Ok(report)
}

/// Says what could not be done, why, and what to do about it.
fn failed(what: &str, error: &Error) -> anyhow::Error {
    let advice = match error {
        Error::NotAuthorized { .. } => "; allow this action to whoever runs karp orphans",
        Error::Credentials { .. } => "; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        Error::Unreachable { .. } => "; check --region and the way to AWS",
        Error::Configuration { .. } => "; say --region REGION",
        _ => "; run it again",
    };
    anyhow::anyhow!("{what}, so nothing is known of orphans: {error}{advice}")
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn odd<T: DeserializeOwned>(name: &str) -> T {
        let object = json!({ "metadata": { "name": name, "uid": format!("{name}-uid") }, "spec": 1 });
        serde_json::from_value(object).expect("its metadata is all right")
    }

    #[test]
    fn what_cannot_be_read_accounts_for_what_was_made_for_it() {
        let known = accounting(&[standing(odd("c"))], &[named::<Ec2NodeClass>(odd("n"))], [].iter());
        let instance = |of: &str| Left { claim: Some(of.to_owned()), ..Left::new(What::Instances, "i-1") };
        assert_eq!(instance("c").orphaned(Some(&known)), None);
        assert!(instance("d").orphaned(Some(&known)).is_some(), "there is no such claim");
        for (what, of) in [(What::LaunchTemplates, "n"), (What::InstanceProfiles, "n-uid")] {
            let left = Left { node_class: Some(of.to_owned()), ..Left::new(what, "x") };
            assert_eq!(left.orphaned(Some(&known)), None);
        }
    }
}
