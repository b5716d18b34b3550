//! Whether a node class can launch at all: user data that renders, and dry runs of the three calls.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karp_aws::launch_template::{Placement, Spec};
use karp_aws::{Error, dry_run};
use karp_domain::api::conditions;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeClaimSpec, labels};
use karp_domain::catalogue::{CapacityType, InstanceType};
use karp_domain::user_data::{ClusterFacts, Error as UserDataError};
use kube::ResourceExt;

use super::{Aws, class, failure, launch};
use crate::cloud::{CloudError, Problem, Resolved};

/// How long the answers to the dry runs are good for the same question (Karpenter: 30 min).
pub const LIFETIME: Duration = Duration::from_secs(1800);
/// A fresh instance profile takes some seconds until EC2 knows it.
const PROPAGATION: Duration = Duration::from_secs(5);
/// What a dry run did not find is looked for again so soon: it may have been made a moment ago, or be gone since it was looked up.
const UNSEEN: Duration = Duration::from_secs(10);
/// What is not found for long is looked for this seldom, as long as the class comes to the same.
pub const UNSEEN_FOR_LONG: Duration = Duration::from_secs(300);
/// Families of types that are asked for before a missing right is held against a class: a policy may bar one and no other.
pub(super) const FAMILIES: usize = 3;
/// Karpenter's word for a missing right to run instances.
const NO_RIGHT_TO_RUN: &str = "RunInstancesAuthCheckFailed";
/// The pool that dry runs are tagged with: the controller's policy wants some.
const NO_POOL: &str = "karp-validation";

/// Something that a dry run did not find, since when, and when it is looked for again: the class itself is looked at more often.
#[derive(Clone, Debug)]
pub struct Unseen {
    problem: Problem,
    since: Timestamp,
    until: Timestamp,
}

fn problem(reason: &str, message: impl Into<String>) -> Problem {
    Problem { condition: conditions::VALIDATION_SUCCEEDED, reason: reason.to_owned(), message: message.into() }
}

/// Notes in `resolved` what keeps the class from launching, if anything does.
pub async fn validate(
    aws: &Aws,
    class: &Ec2NodeClass,
    cluster: Result<ClusterFacts, Error>,
    resolved: &mut Resolved,
) -> Result<(), CloudError> {
    let Ok(family) = class::family(&class.spec) else { return Ok(()) };
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => match CloudError::from(error) {
            CloudError::Refused { reason, message } => {
                resolved.problems.push(problem(&reason, message));
                return Ok(());
            }
            error => return Err(error),
        },
    };
    if let Some(message) = launch::excess_of_tags(&aws.cluster_name, class) {
        resolved.problems.push(problem("TagValidationFailed", message));
        return Ok(());
    }
    let claim = NodeClaim::new("example", NodeClaimSpec::default());
    let user_data = match launch::render(family, class, &claim, cluster.clone(), CapacityType::OnDemand, None) {
        Ok(text) => {
            let mut sizes = aws.user_data.lock().unwrap_or_else(PoisonError::into_inner);
            sizes.insert(class.name_any(), text.len());
            text
        }
        Err(error) => {
            resolved.problems.push(unrendered(&error));
            return Ok(());
        }
    };
    if !resolved.problems.is_empty() {
        let open: Vec<&str> = resolved.problems.iter().map(|problem| problem.condition).collect();
        let message = format!("waiting for {}", open.join(", "));
        resolved.problems.push(problem("DependenciesNotReady", message));
        return Ok(());
    }
    if aws.dry_runs {
        rights(aws, class, &cluster, user_data, resolved).await?;
    } else {
        resolved.remark = Some(problem("DryRunDisabled", "EC2 is not asked by dry runs: --disable-dry-run is set"));
    }
    Ok(())
}

fn unrendered(error: &UserDataError) -> Problem {
    problem(error.reason(), error.to_string())
}

/// Asks EC2 by dry runs, unless it was asked the same a short while ago.
async fn rights(
    aws: &Aws,
    class: &Ec2NodeClass,
    cluster: &ClusterFacts,
    user_data: String,
    resolved: &mut Resolved,
) -> Result<(), CloudError> {
    let (Some(profile), Some(image), Some(subnet)) =
        (&resolved.instance_profile, resolved.amis.first(), resolved.subnets.first())
    else {
        return Ok(());
    };
    let kinds = plain_types(aws, class, resolved).await?;
    let family = class::family(&class.spec)?;
    let group = aws.placement_group(class).await?;
    let placement = group.map(|group| Placement { group: group.id, partition: None });
    let common = Spec {
        instance_profile: profile.clone(),
        user_data,
        security_group_ids: resolved.security_groups.iter().map(|group| group.id.clone()).collect(),
        tags: class::tags(&aws.cluster_name, class, NO_POOL),
        ..class::template(&class.spec, family, placement, aws.clients.region())
    };
    let launch = |kind: &Arc<InstanceType>| {
        let image = class::image_of(&resolved.amis, kind).unwrap_or(image);
        let prefixes = class::takes_prefixes(&class.spec, cluster, kind);
        let interface = class::interface(&class.spec, cluster, prefixes, &[]);
        (Spec { image_id: image.id.clone(), interface, ..common.clone() }, kind.name.to_string())
    };
    let launches: Vec<(Spec, String)> = kinds.iter().map(launch).collect();
    let Some((_, instance_type)) = launches.first() else { return Ok(()) };
    let asked: Vec<String> = launches.iter().map(|(spec, kind)| format!("{} {kind}", spec.name())).collect();
    let question = (asked.join(","), instance_type.clone(), subnet.id.clone());
    let (name, now) = (class.name_any(), Timestamp::now());
    let known = aws.unseen.known(&name, &question);
    if let Some(unseen) = known.as_ref().filter(|unseen| now < unseen.until) {
        resolved.problems.push(unseen.problem.clone());
        look_again(resolved, Duration::try_from(unseen.until.duration_since(now)).unwrap_or_default());
        return Ok(());
    }
    let answer = aws
        .validated
        .get(
            &name,
            &question,
            |_| true,
            || async {
                match ask(aws, &launches, &subnet.id).await {
                    Ok(()) => Ok(None),
                    Err(denial) => denial.lasting().map(Some),
                }
            },
        )
        .await;
    match answer {
        Ok(found) => {
            aws.unseen.forget(&name);
            resolved.problems.extend(found);
        }
        Err(error) if is_unknown_profile(&error) => {
            aws.profiles.doubt(class);
            resolved.problems.push(problem("InstanceProfileNotFound", error.to_string()));
            look_again(resolved, PROPAGATION);
        }
        Err(error) if error.is_not_found() => {
            aws.subnets.forget(&name);
            aws.groups.forget(&name);
            aws.images.forget(&name);
            aws.placements.forget(&name);
            let reason = failure::reason(&error);
            if reason == failure::IMAGE_NOT_FOUND {
                // a public parameter is remembered for a day, and its image may have been withdrawn
                let images: Vec<&str> = resolved.amis.iter().map(|image| image.id.as_str()).collect();
                aws.parameters.forget(&images);
            }
            let since = known.map_or(now, |unseen| unseen.since);
            let (missing, wait) = (problem(reason, error.to_string()), unseen_for(since, now));
            aws.unseen.note(&name, &question, Unseen { problem: missing.clone(), since, until: now + wait });
            resolved.problems.push(missing);
            look_again(resolved, wait);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Asks for another look, so soon at the latest.
fn look_again(resolved: &mut Resolved, wait: Duration) {
    resolved.look_again = Some(resolved.look_again.map_or(wait, |known| known.min(wait)));
}

/// How long until what was not found is looked for again: as long as it has been missed, within bounds.
fn unseen_for(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default().clamp(UNSEEN, UNSEEN_FOR_LONG)
}

/// Returns the cheapest types of some families that a class can launch, those without accelerators first: their images are the least likely
/// to need a bigger disk.
async fn plain_types(aws: &Aws, class: &Ec2NodeClass, resolved: &Resolved) -> Result<Vec<Arc<InstanceType>>, Error> {
    let reservations = resolved.capacity_reservations.as_deref().unwrap_or_default();
    let key = aws.key(class, &resolved.subnets, resolved.amis.clone(), reservations).await?;
    let catalogue = aws.market.catalogue(&class.name_any(), key).await?;
    Ok(cheapest_of_families(catalogue.types()))
}

fn cheapest_of_families(types: &[Arc<InstanceType>]) -> Vec<Arc<InstanceType>> {
    let accelerated = [labels::INSTANCE_GPU_COUNT, labels::INSTANCE_ACCELERATOR_COUNT];
    // what is reserved comes and goes with each launch
    let bought = |kind: &InstanceType| {
        let open = kind.offerings.iter().filter(|one| one.available && one.reservation.is_none());
        open.map(|one| one.price).min()
    };
    let rank = |kind: &Arc<InstanceType>| {
        (accelerated.iter().any(|label| kind.labels.contains_key(*label)), bought(kind), kind.name.clone())
    };
    let mut sold: Vec<Arc<InstanceType>> = types.iter().filter(|kind| bought(kind).is_some()).cloned().collect();
    sold.sort_by_cached_key(rank);
    let family = |kind: &Arc<InstanceType>| kind.name.split('.').next().map(str::to_owned);
    let mut families = BTreeSet::new();
    sold.retain(|kind| families.len() < FAMILIES && families.insert(family(kind)));
    sold
}

/// A dry run that did not succeed.
struct Denial {
    reason: &'static str,
    error: Error,
}

impl Denial {
    /// Returns the problem that stands until the class or the rights change; else the error, worth another try. What is not found may be seen in
    /// a moment.
    fn lasting(self) -> Result<Problem, Error> {
        if is_unknown_profile(&self.error) {
            return Err(self.error);
        }
        match &self.error {
            // the call may be made, the image is somebody else's
            Error::NotAuthorized { .. } if failure::reason(&self.error) == failure::IMAGE_NOT_SHARED => {
                Ok(problem(failure::IMAGE_NOT_SHARED, self.error.to_string()))
            }
            Error::NotAuthorized { action, .. } => {
                Ok(problem(self.reason, format!("the controller may not call {action}: {}", self.error)))
            }
            Error::InvalidRequest { .. } | Error::LimitExceeded { .. } => {
                Ok(problem(failure::reason(&self.error), self.error.to_string()))
            }
            _ => Err(self.error),
        }
    }
}

/// Asks whether the first of these could be launched, each a template with a type. Where only the right to run an instance of it is missing,
/// any of the others will do.
async fn ask(aws: &Aws, launches: &[(Spec, String)], subnet: &str) -> Result<(), Denial> {
    let denied = |reason| move |error| Denial { reason, error };
    let Some((spec, _)) = launches.first() else { return Ok(()) };
    dry_run::create_fleet(&aws.clients, &spec.tags).await.map_err(denied("CreateFleetAuthCheckFailed"))?;
    dry_run::create_launch_template(&aws.clients, spec).await.map_err(denied("CreateLaunchTemplateAuthCheckFailed"))?;
    let mut denial = None;
    for (spec, instance_type) in launches {
        match dry_run::run_instances(&aws.clients, spec, instance_type, subnet).await {
            // Another type or zone would do: what this asks is whether the caller may.
            Err(Error::InsufficientCapacity { .. }) => return Ok(()),
            Err(error @ Error::NotAuthorized { .. }) => denial = denial.or(Some(error)),
            answer => return answer.map_err(denied(NO_RIGHT_TO_RUN)),
        }
    }
    denial.map_or(Ok(()), |error| Err(denied(NO_RIGHT_TO_RUN)(error)))
}

fn is_unknown_profile(error: &Error) -> bool {
    matches!(failure::reason(error), "InstanceProfileNameInvalid")
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::{NodeSettings, Zone, builtin_type, offerings};

    use super::*;

    fn denial(code: &str, message: &str) -> Denial {
        Denial { reason: NO_RIGHT_TO_RUN, error: Error::from_code("ec2:RunInstances", code, message.to_owned()) }
    }

    #[test]
    fn the_cheapest_of_three_families_are_asked_for() {
        let zones = [Zone::new("a", "")];
        let kinds = ["g5.xlarge", "m7i.large", "m7i.xlarge", "r7i.large", "t3.nano", "c7i.large"].map(|name| {
            let facts = builtin_type(name).expect("a type");
            let sold = offerings(facts, &zones, |_, _| None);
            Arc::new(InstanceType::from_facts(facts, &NodeSettings::default(), sold))
        });
        let names = |kinds: &[Arc<InstanceType>]| -> Vec<String> {
            cheapest_of_families(kinds).iter().map(|kind| kind.name.to_string()).collect()
        };
        assert_eq!(names(&kinds), ["t3.nano", "c7i.large", "m7i.large"]);
        assert_eq!(names(&kinds[..3]), ["m7i.large", "g5.xlarge"], "with accelerators where there is nothing else");
    }

    #[test]
    fn what_stays_away_is_looked_for_less_and_less_often() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let after = |seconds: i64| unseen_for(now - jiff::SignedDuration::from_secs(seconds), now).as_secs();
        assert_eq!([0, 25, 3600].map(after), [10, 25, 300]);
        assert_eq!(after(-60), 10, "a clock went back");
    }

    #[test]
    fn a_missing_right_is_a_condition_and_a_throttle_is_not() {
        let reason = |code: &str, message: &str| denial(code, message).lasting().ok().map(|problem| problem.reason);
        assert_eq!(reason("UnauthorizedOperation", "").as_deref(), Some("RunInstancesAuthCheckFailed"));
        assert_eq!(reason("InvalidAMIID.Malformed", "").as_deref(), Some("InvalidAMIID"));
        let foreign = denial("AuthFailure", "Not authorized for images: [ami-1]").lasting().expect("it lasts");
        assert_eq!(foreign.reason, "AMIAuthorizationFailure");
        assert!(!foreign.message.contains("may not call"), "{}", foreign.message);
        assert_eq!(reason("RequestLimitExceeded", ""), None);
        assert_eq!(reason("InvalidGroup.NotFound", ""), None, "made a moment ago, or gone since it was looked up");
        let unknown = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name";
        assert_eq!(reason("InvalidParameterValue", unknown), None, "EC2 may learn of it in a moment");
    }
}
