//! Whether a node class can launch at all: user data that renders, and dry runs of the three calls.

use std::sync::PoisonError;
use std::time::Duration;

use karp_aws::launch_template::{Placement, Spec};
use karp_aws::{Error, dry_run};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeClaimSpec, conditions};
use karp_domain::catalogue::CapacityType;
use karp_domain::user_data::{ClusterFacts, Error as UserDataError};
use kube::ResourceExt;

use super::{Aws, class, failure, launch};
use crate::cloud::{CloudError, Problem, Resolved};

/// How long the answers to the dry runs are good for the same question (Karpenter: 30 min).
pub const LIFETIME: Duration = Duration::from_secs(1800);
/// A fresh instance profile takes some seconds until EC2 knows it.
const PROPAGATION: Duration = Duration::from_secs(5);
/// The pool that dry runs are tagged with: the controller's policy wants some.
const NO_POOL: &str = "karp-validation";

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
    let Some(kind) = aws.plain_type(class, resolved).await? else { return Ok(()) };
    let instance_type = kind.name.to_string();
    let family = class::family(&class.spec)?;
    let group = aws.placement_group(class).await?;
    let placement = group.map(|group| Placement { group: group.id, partition: None });
    let image = class::image_of(&resolved.amis, &kind).unwrap_or(image);
    let spec = Spec {
        image_id: image.id.clone(),
        instance_profile: profile.clone(),
        user_data,
        security_group_ids: resolved.security_groups.iter().map(|group| group.id.clone()).collect(),
        interface: class::interface(&class.spec, cluster, class::wants_prefixes(&class.spec), 0),
        tags: class::tags(&aws.cluster_name, class, NO_POOL),
        ..class::template(&class.spec, family, placement)
    };
    let question = (spec.name(), instance_type.clone(), subnet.id.clone());
    let answer = aws
        .validated
        .get(
            &class.name_any(),
            &question,
            |_| true,
            || async {
                match ask(aws, &spec, &instance_type, &subnet.id).await {
                    Ok(()) => Ok(None),
                    Err(denial) => denial.lasting().map(Some),
                }
            },
        )
        .await;
    match answer {
        Ok(None) => {}
        Ok(Some(found)) => resolved.problems.push(found),
        Err(error) if is_unknown_profile(&error) => {
            aws.profiles.doubt(class);
            resolved.problems.push(problem("InstanceProfileNotFound", error.to_string()));
            resolved.look_again = Some(PROPAGATION);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// A dry run that did not succeed.
struct Denial {
    reason: &'static str,
    error: Error,
}

impl Denial {
    /// Returns the problem that stands until the class or the rights change; else the error, worth another try.
    fn lasting(self) -> Result<Problem, Error> {
        if is_unknown_profile(&self.error) {
            return Err(self.error);
        }
        match &self.error {
            Error::NotAuthorized { action, .. } => {
                Ok(problem(self.reason, format!("the controller may not call {action}: {}", self.error)))
            }
            Error::InvalidRequest { .. } | Error::NotFound { .. } | Error::LimitExceeded { .. } => {
                Ok(problem(failure::reason(&self.error), self.error.to_string()))
            }
            _ => Err(self.error),
        }
    }
}

async fn ask(aws: &Aws, spec: &Spec, instance_type: &str, subnet: &str) -> Result<(), Denial> {
    let denied = |reason| move |error| Denial { reason, error };
    dry_run::create_fleet(&aws.clients, &spec.tags).await.map_err(denied("CreateFleetAuthCheckFailed"))?;
    dry_run::create_launch_template(&aws.clients, spec).await.map_err(denied("CreateLaunchTemplateAuthCheckFailed"))?;
    match dry_run::run_instances(&aws.clients, spec, instance_type, subnet).await {
        // Another type or zone would do: what this asks is whether the caller may.
        Err(Error::InsufficientCapacity { .. }) => Ok(()),
        answer => answer.map_err(denied("RunInstancesAuthCheckFailed")),
    }
}

fn is_unknown_profile(error: &Error) -> bool {
    matches!(failure::reason(error), "InstanceProfileNameInvalid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(code: &str, message: &str) -> Denial {
        Denial {
            reason: "RunInstancesAuthCheckFailed",
            error: Error::from_code("ec2:RunInstances", code, message.to_owned()),
        }
    }

    #[test]
    fn a_missing_right_is_a_condition_and_a_throttle_is_not() {
        let reason = |code: &str, message: &str| denial(code, message).lasting().ok().map(|problem| problem.reason);
        assert_eq!(reason("UnauthorizedOperation", "").as_deref(), Some("RunInstancesAuthCheckFailed"));
        assert_eq!(reason("InvalidAMIID.Malformed", "").as_deref(), Some("InvalidAMIID"));
        assert_eq!(reason("RequestLimitExceeded", ""), None);
        let unknown = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name";
        assert_eq!(reason("InvalidParameterValue", unknown), None, "EC2 may learn of it in a moment");
    }
}
