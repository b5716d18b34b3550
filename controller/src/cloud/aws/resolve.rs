//! What a node class selects, and what is wrong with it.

use karp_aws::images::{self, Image};
use karp_aws::placement_groups::PlacementGroup;
use karp_aws::selector::Term;
use karp_aws::subnets::Subnet;
use karp_aws::{Error, Retry, instances, node_class, security_groups, subnets};
use karp_domain::api::{Ec2NodeClass, Ec2NodeClassSpec, Ec2NodeClassStatus, SecurityGroup, conditions};
use kube::ResourceExt;

use super::reservations::Reservations;
use super::{Aws, class, failure, validation};
use crate::cloud::{CloudError, Problem, Resolved};

/// Looks everything up at once. A lookup that is worth another try fails the whole, so that the last status stands; one that is not
/// becomes a problem of its condition.
pub async fn resolve(aws: &Aws, class: &Ec2NodeClass) -> Result<Resolved, CloudError> {
    let name = class.name_any();
    let (subnet_terms, group_terms) =
        (node_class::subnet_terms(&class.spec), node_class::security_group_terms(&class.spec));
    let (found_subnets, found_groups, found_images, placement, reservations, cluster) = futures::join!(
        aws.subnets.get(&name, &subnet_terms, |found| !found.is_empty(), || subnets(aws, &subnet_terms)),
        aws.groups.get(
            &name,
            &group_terms,
            |found| !found.is_empty(),
            || security_groups::find(&aws.clients, &group_terms)
        ),
        images(aws, &name, &class.spec),
        aws.placement_group(class),
        aws.reservations(class),
        aws.cluster(),
    );
    let mut resolved = Resolved::default();
    let found = settle(found_subnets, conditions::SUBNETS_READY, &mut resolved)?.unwrap_or_default();
    resolved.subnets = found.iter().map(node_class::subnet).collect();
    let groups = settle(found_groups, conditions::SECURITY_GROUPS_READY, &mut resolved)?.unwrap_or_default();
    resolved.security_groups =
        groups.into_iter().map(|group| SecurityGroup { id: group.id, name: Some(group.name) }).collect();
    let images = settle(found_images, conditions::AMIS_READY, &mut resolved)?.unwrap_or_default();
    resolved.amis = images.into_iter().map(node_class::ami).collect();
    none_found(&mut resolved);
    place(class, placement, &mut resolved)?;
    if let Some(reservations) = reservations.transpose() {
        let found = settle(reservations, conditions::CAPACITY_RESERVATIONS_READY, &mut resolved)?;
        resolved.look_again = aws.reservations.as_ref().map(Reservations::lifetime);
        let listed = found.map(|found| found.into_iter().map(|one| one.reservation).collect());
        // nothing is launched there now; when blocks end that have nodes is still to be known
        let known = || class.status.as_ref().map(|status| status.capacity_reservations.clone()).unwrap_or_default();
        resolved.capacity_reservations = Some(listed.unwrap_or_else(known));
    }
    profile(aws, class, &mut resolved).await?;
    validation::validate(aws, class, cluster, &mut resolved).await?;
    Ok(resolved)
}

/// Describes subnets, and notes how many addresses they have free.
async fn subnets(aws: &Aws, terms: &[Term]) -> Result<Vec<Subnet>, Error> {
    let asked = aws.addresses.ask();
    let found = subnets::find(&aws.clients, terms).await?;
    aws.addresses.describe(asked, &found);
    Ok(found)
}

async fn images(aws: &Aws, name: &str, spec: &Ec2NodeClassSpec) -> Result<Vec<Image>, Error> {
    class::family(spec)?;
    let alias = node_class::alias(spec)?;
    let version = match alias {
        Some(_) => aws.described().await?.version.clone(),
        None => String::new(),
    };
    let question = (spec.ami_selector_terms.clone(), version.clone());
    let found = aws.images.get(
        name,
        &question,
        |found| !found.is_empty(),
        || async {
            match &alias {
                Some(alias) => images::by_alias(&aws.clients, &aws.parameters, alias, &version).await,
                None => images::find(&aws.clients, &aws.parameters, &node_class::image_terms(spec)).await,
            }
        },
    );
    let found = found.await?;
    // A parameter that still names a deprecated image is asked for again.
    let deprecated: Vec<&str> = found.iter().filter(|image| image.deprecated).map(|image| image.id.as_str()).collect();
    if !deprecated.is_empty() {
        aws.parameters.forget(&deprecated);
    }
    Ok(found)
}

/// Notes what is wrong with the placement group, if the class names one.
fn place(
    class: &Ec2NodeClass,
    found: Result<Option<PlacementGroup>, Error>,
    resolved: &mut Resolved,
) -> Result<(), CloudError> {
    let Some(selector) = &class.spec.placement_group_selector else { return Ok(()) };
    let condition = conditions::PLACEMENT_GROUP_READY;
    let wanted = selector.name.as_deref().or(selector.id.as_deref()).unwrap_or_default();
    let Some(found) = settle(found, condition, resolved)? else { return Ok(()) };
    match found {
        None => {
            let message = format!("placement group {wanted:?} not found");
            resolved.problems.push(problem(condition, "PlacementGroupNotFound", &message));
        }
        Some(group) if !group.available => {
            let message = format!("placement group {wanted:?} is not available");
            resolved.problems.push(problem(condition, "PlacementGroupNotAvailable", &message));
        }
        Some(_) => {}
    }
    Ok(())
}

/// Takes the instance profile that the class names, or the one that is made for its role.
async fn profile(aws: &Aws, class: &Ec2NodeClass, resolved: &mut Resolved) -> Result<(), CloudError> {
    match (&class.spec.instance_profile, &class.spec.role) {
        (Some(profile), _) => resolved.instance_profile = Some(profile.clone()),
        (None, Some(role)) => match aws.profiles.of_role(&aws.clients, &aws.cluster_name, class, role).await? {
            Ok(profile) => resolved.instance_profile = Some(profile),
            Err(problem) => resolved.problems.push(problem),
        },
        (None, None) => resolved.problems.push(problem(
            conditions::INSTANCE_PROFILE_READY,
            "InstanceProfileNotFound",
            "set spec.role or spec.instanceProfile",
        )),
    }
    Ok(())
}

/// Takes what was found, or notes a lasting failure as a problem of `condition`.
fn settle<T>(
    found: Result<T, Error>,
    condition: &'static str,
    resolved: &mut Resolved,
) -> Result<Option<T>, CloudError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() || error.retry() == Retry::OnSpecChange => {
            let reason = match failure::reason(&error) {
                "LaunchFailed" => "LookupFailed",
                reason => reason,
            };
            resolved.problems.push(problem(condition, reason, &error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn problem(condition: &'static str, reason: &str, message: &str) -> Problem {
    Problem { condition, reason: reason.to_owned(), message: message.to_owned() }
}

/// Says which selectors select nothing, unless their lookup failed anyway.
fn none_found(resolved: &mut Resolved) {
    for (condition, empty, reason, what) in [
        (
            conditions::SUBNETS_READY,
            resolved.subnets.is_empty(),
            "SubnetsNotFound",
            "SubnetSelector did not match any Subnets",
        ),
        (
            conditions::SECURITY_GROUPS_READY,
            resolved.security_groups.is_empty(),
            "SecurityGroupsNotFound",
            "SecurityGroupSelector did not match any SecurityGroups",
        ),
        (conditions::AMIS_READY, resolved.amis.is_empty(), "AMINotFound", "AMISelector did not match any AMIs"),
    ] {
        if empty && !resolved.problems.iter().any(|known| known.condition == condition) {
            resolved.problems.push(problem(condition, reason, what));
        }
    }
}

/// An instance whose capacity reservation is no longer selected.
pub const RESERVATION_DRIFT: &str = "CapacityReservationDrift";

/// Says whether an instance sits where its class no longer places any, or has other security groups; `group` is the placement group that
/// the class selects, as far as it is known.
pub fn placement_drift(
    instance: &instances::Instance,
    spec: &Ec2NodeClassSpec,
    class: &Ec2NodeClassStatus,
    group: Option<&PlacementGroup>,
) -> Option<&'static str> {
    if instance.state.is_ending() {
        return None;
    }
    // A class that resolves to nothing is broken, not changed: its nodes stay.
    if !class.subnets.is_empty() && !class.subnets.iter().any(|subnet| subnet.id == instance.subnet_id) {
        return Some("SubnetDrift");
    }
    let held = |id: &str| class.capacity_reservations.iter().any(|one| one.id == id);
    let known = conditions::is_true(&class.conditions, conditions::CAPACITY_RESERVATIONS_READY);
    let told = known || spec.capacity_reservation_selector_terms.is_empty();
    if instance.reservation.as_ref().is_some_and(|taken| !held(&taken.id)) && told {
        return Some(RESERVATION_DRIFT);
    }
    let mut wanted: Vec<&str> = class.security_groups.iter().map(|group| group.id.as_str()).collect();
    wanted.sort_unstable();
    let has = instance.security_group_ids.iter().map(String::as_str);
    if !wanted.is_empty() && !has.eq(wanted) {
        return Some("SecurityGroupDrift");
    }
    let (is_in, wanted) = (instance.group.as_ref()?, group?);
    let elsewhere = if is_in.id.is_empty() { is_in.name != wanted.name } else { is_in.id != wanted.id };
    elsewhere.then_some("PlacementGroupDrift")
}

#[cfg(test)]
mod tests {
    use karp_aws::capacity_reservations::Taken;
    use karp_domain::api::CapacityReservationSelectorTerm;
    use karp_domain::api::Subnet;
    use karp_domain::catalogue::{CapacityType, ReservationKind};

    use super::*;

    fn instance() -> instances::Instance {
        instances::Instance {
            id: "i-1".into(),
            state: instances::State::Running,
            instance_type: "m7i.large".into(),
            zone: "a".into(),
            subnet_id: "subnet-1".into(),
            image_id: "ami-1".into(),
            capacity_type: CapacityType::Spot,
            reservation: None,
            group: None,
            partition: None,
            launched_at: None,
            private_dns_name: String::new(),
            security_group_ids: vec!["sg-1".into(), "sg-2".into()],
            instance_profile: None,
            volumes: Vec::new(),
            tags: Default::default(),
            client_token: String::new(),
        }
    }

    fn drift(instance: &instances::Instance, class: &Ec2NodeClassStatus) -> Option<&'static str> {
        placement_drift(instance, &Ec2NodeClassSpec::default(), class, None)
    }

    fn class(subnets: &[&str], groups: &[&str]) -> Ec2NodeClassStatus {
        let subnet = |id: &&str| Subnet { id: (*id).to_owned(), ..Subnet::default() };
        let group = |id: &&str| SecurityGroup { id: (*id).to_owned(), name: None };
        Ec2NodeClassStatus {
            subnets: subnets.iter().map(subnet).collect(),
            security_groups: groups.iter().map(group).collect(),
            ..Ec2NodeClassStatus::default()
        }
    }

    #[test]
    fn an_instance_drifts_when_its_place_is_no_longer_selected() {
        for (subnets, groups, expected) in [
            (&["subnet-1", "subnet-2"][..], &["sg-2", "sg-1"][..], None),
            (&["subnet-2"], &["sg-1", "sg-2"], Some("SubnetDrift")),
            (&["subnet-1"], &["sg-1"], Some("SecurityGroupDrift")),
            (&[], &[], None),
        ] {
            assert_eq!(drift(&instance(), &class(subnets, groups)), expected, "{subnets:?} {groups:?}");
        }
        let ending = instances::Instance { state: instances::State::ShuttingDown, ..instance() };
        assert_eq!(drift(&ending, &class(&["subnet-2"], &[])), None);
    }

    #[test]
    fn an_instance_drifts_when_its_reservation_is_no_longer_selected() {
        let taken = |id: &str| Taken { id: id.to_owned(), kind: ReservationKind::Default, interruptible: false };
        let held = instances::Instance { reservation: Some(taken("cr-1")), ..instance() };
        let class = |ids: &[&str]| Ec2NodeClassStatus {
            capacity_reservations: ids.iter().map(|id| reservation(id)).collect(),
            ..class(&["subnet-1"], &["sg-1", "sg-2"])
        };
        let mut spec = Ec2NodeClassSpec::default();
        assert_eq!(
            placement_drift(&held, &spec, &class(&[]), None),
            Some(RESERVATION_DRIFT),
            "none is asked for any more"
        );
        assert_eq!(
            placement_drift(&instance(), &spec, &class(&[]), None),
            None,
            "its reservation ended: it runs on, on demand"
        );
        spec.capacity_reservation_selector_terms = vec![CapacityReservationSelectorTerm::default()];
        let (kind, now) = (conditions::CAPACITY_RESERVATIONS_READY, jiff::Timestamp::UNIX_EPOCH);
        let with = |ids: &[&str], status| {
            let mut class = class(ids);
            conditions::set(&mut class.conditions, kind, status, "", "", now);
            placement_drift(&held, &spec, &class, None)
        };
        use conditions::ConditionStatus::{False, True};
        assert_eq!(with(&["cr-2", "cr-1"], True), None);
        assert_eq!(with(&["cr-2"], True), Some(RESERVATION_DRIFT));
        assert_eq!(with(&[], False), None, "the lookup failed: nobody knows");
        assert_eq!(placement_drift(&held, &spec, &class(&[]), None), None, "they were not looked up yet");
    }

    #[test]
    fn an_instance_drifts_when_it_is_known_to_be_in_another_placement_group() {
        let wanted = PlacementGroup {
            id: "pg-1".into(),
            name: "near".into(),
            strategy: "cluster".into(),
            partitions: 0,
            available: true,
        };
        let drift = |id: &str, name: &str, group: Option<&PlacementGroup>| {
            let told = instances::InGroup { id: id.into(), name: name.into() };
            let placed = instances::Instance { group: Some(told), ..instance() };
            placement_drift(&placed, &Ec2NodeClassSpec::default(), &class(&["subnet-1"], &[]), group)
        };
        assert_eq!(drift("pg-1", "near", Some(&wanted)), None);
        assert_eq!(drift("pg-2", "far", Some(&wanted)), Some("PlacementGroupDrift"));
        assert_eq!(drift("pg-2", "near", Some(&wanted)), Some("PlacementGroupDrift"), "another one took its name");
        assert_eq!((drift("pg-1", "", Some(&wanted)), drift("", "near", Some(&wanted))), (None, None));
        assert_eq!(drift("", "far", Some(&wanted)), Some("PlacementGroupDrift"));
        assert_eq!(drift("pg-2", "far", None), None, "none is selected, or nobody knows which");
        let nowhere =
            placement_drift(&instance(), &Ec2NodeClassSpec::default(), &class(&["subnet-1"], &[]), Some(&wanted));
        assert_eq!(nowhere, None, "EC2 tells of none");
    }

    fn reservation(id: &str) -> karp_domain::api::CapacityReservation {
        serde_json::from_value(serde_json::json!({"id": id, "availabilityZone": "a", "instanceType": "m7i.large",
            "ownerID": "123456789012", "instanceMatchCriteria": "targeted"}))
        .expect("a reservation")
    }

    #[test]
    fn a_selector_that_selects_nothing_is_a_problem_once() {
        let failed = problem(conditions::SUBNETS_READY, "Unauthorized", "no");
        let mut resolved = Resolved { problems: vec![failed], ..Resolved::default() };
        none_found(&mut resolved);
        let reasons: Vec<_> = resolved.problems.iter().map(|problem| problem.reason.as_str()).collect();
        assert_eq!(reasons, ["Unauthorized", "SecurityGroupsNotFound", "AMINotFound"]);
    }
}
