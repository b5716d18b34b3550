//! Failures of the EC2 edge in the controller's words.

use karp_aws::change::Failed;
use karp_aws::fleet::{Answer, Refusal, Request};
use karp_aws::{Error, Retry};
use karp_domain::api::conditions;
use karp_domain::fleet::{Lesson, NO_ADDRESSES, NO_SPOT_ROLE, UnavailableOffering, lesson};

use crate::cloud::{CloudError, LaunchError};

/// Karpenter's word for an image of another account that is not shared with this one.
pub const IMAGE_NOT_SHARED: &str = "AMIAuthorizationFailure";
/// Karpenter's word for an image that is not there.
pub const IMAGE_NOT_FOUND: &str = "AMINotFound";

impl From<Error> for CloudError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error.retry() {
            Retry::After(wait) => Self::Retry { after: Some(wait), message },
            Retry::Resolve => Self::Retry { after: None, message },
            Retry::OnSpecChange => Self::Refused { reason: reason(&error).to_owned(), message },
        }
    }
}

/// Returns Karpenter's word for a failure, as its conditions and metrics show it.
pub fn reason(error: &Error) -> &'static str {
    if let Some(reason) = error.code().and_then(|code| by_code(code, &error.to_string())) {
        return reason;
    }
    match error {
        Error::NotAuthorized { .. } => "Unauthorized",
        Error::Credentials { .. } => "CredentialsInvalid",
        Error::LimitExceeded { .. } => "LimitExceeded",
        Error::Throttled { .. } => "RequestLimitExceeded",
        Error::InsufficientCapacity { .. } => "InsufficientCapacity",
        Error::NotImplemented { .. } => "NotImplemented",
        Error::Barred { .. }
        | Error::NotFound { .. }
        | Error::AlreadyExists { .. }
        | Error::InUse { .. }
        | Error::TokenReused { .. }
        | Error::InvalidRequest { .. }
        | Error::Unreachable { .. }
        | Error::Malformed { .. }
        | Error::Configuration { .. }
        | Error::Unexpected { .. } => "LaunchFailed",
    }
}

/// Returns Karpenter's word for a code of EC2; for some of them EC2's words tell more.
fn by_code(code: &str, message: &str) -> Option<&'static str> {
    let says = |words: &str| message.contains(words);
    Some(match code {
        NO_SPOT_ROLE => "SpotSLRCreationFailed",
        "UnauthorizedOperation" | "AccessDenied" if says("image(s)") || says("ec2:*::image") => IMAGE_NOT_SHARED,
        "AuthFailure" if says("image") => IMAGE_NOT_SHARED,
        "InvalidParameterCombination" if says("Free Tier") => "FreeTierIneligible",
        _ if says("iamInstanceProfile.name is invalid") || says("IAM Instance Profile") => "InstanceProfileNameInvalid",
        // IAM's own word, when it is handed through.
        "NoSuchEntity" if says("nstance profile") => "InstanceProfileNameInvalid",
        _ if says("belong to different networks") || says("Security group") && says("subnet") => {
            "SecurityGroupSubnetVPCMismatch"
        }
        _ if code.starts_with("InvalidLaunchTemplate") => "LaunchTemplateNotFound",
        "InvalidAMIID.NotFound" | "InvalidAMIID.Unavailable" => IMAGE_NOT_FOUND,
        _ if code.starts_with("InvalidAMIID") => "InvalidAMIID",
        _ if code.starts_with("UserData") || says("User data is limited") => "UserDataSizeLimitExceeded",
        "RequestLimitExceeded" | "Client.RequestLimitExceeded" => "RequestLimitExceeded",
        "InternalError" | "InternalFailure" | "InternalServiceError" => "InternalError",
        "MaxFleetCountExceeded" => "FleetQuotaExceeded",
        "PendingVerification" => "AccountPendingVerification",
        "MaxSpotInstanceCountExceeded" => "SpotQuotaExceeded",
        "VcpuLimitExceeded" => "VCPULimitExceeded",
        NO_ADDRESSES => "InsufficientFreeAddressesInSubnet",
        _ => return None,
    })
}

/// Says whether an offering was refused because it cannot be had here and now, so that another may be tried.
fn is_unavailable(refusal: &Refusal) -> bool {
    matches!(lesson(&refusal.code), Lesson::Missing(_))
}

/// Says of each part of a request what a call says that failed as a whole.
pub fn of_all(error: &Error, request: &Request) -> Vec<Refusal> {
    let Some(code) = error.code() else { return Vec::new() };
    let each = request.choices.iter().flat_map(|choice| &choice.overrides);
    each.map(|one| Refusal {
        instance_type: one.instance_type.clone(),
        zone: one.zone.clone(),
        subnet_id: one.subnet_id.clone(),
        capacity_type: request.capacity_type,
        code: code.to_owned(),
        message: error.to_string(),
    })
    .collect()
}

/// Names what the refusals teach about offerings. `reservation` says which capacity reservation a refused offering was to come from,
/// `has_room` whether a zone has another subnet with addresses: then the next launch takes that, and nothing is missing.
pub fn unavailable(
    refused: &[Refusal],
    reservation: impl Fn(&Refusal) -> Option<String>,
    has_room: impl Fn(&str) -> bool,
) -> Vec<UnavailableOffering> {
    let mut offerings: Vec<UnavailableOffering> = Vec::new();
    for refusal in refused.iter().filter(|refusal| refusal.code != NO_ADDRESSES || !has_room(&refusal.zone)) {
        let asked = UnavailableOffering {
            instance_type: refusal.instance_type.clone(),
            zone: refusal.zone.clone(),
            capacity_type: refusal.capacity_type,
            reservation: reservation(refusal),
            code: refusal.code.clone(),
        };
        let Some(offering) = asked.learnt(lesson(&refusal.code)) else { continue };
        if !offerings.contains(&offering) {
            offerings.push(offering);
        }
    }
    offerings
}

/// Answers that the next attempt goes elsewhere, when all that was wrong are full subnets beside which the class has others.
pub fn elsewhere(refused: &[Refusal], has_room: impl Fn(&str) -> bool) -> Option<LaunchError> {
    let full = |refusal: &Refusal| refusal.code == NO_ADDRESSES && has_room(&refusal.zone);
    let first = refused.first().filter(|_| refused.iter().all(full))?;
    Some(LaunchError::Elsewhere(first.error().to_string()))
}

/// Draws the consequence of an answer without an instance: another offering if that may help, else what stands in the way. The answer is
/// definite: EC2 keeps it under the token, so the next try needs another token even where the same request may then succeed. An answer without
/// a reason teaches nothing of offerings: a new claim would be planned and launched as this one was, so this one waits and is tried again.
pub fn nothing_launched(
    answer: &Answer,
    reservation: impl Fn(&Refusal) -> Option<String>,
    has_room: impl Fn(&str) -> bool,
) -> LaunchError {
    let lasting = answer.refused.iter().find(|refusal| !is_unavailable(refusal));
    if let Some(refusal) = lasting {
        let error = refusal.error();
        return LaunchError::Denied { reason: reason(&error).to_owned(), message: error.to_string() };
    }
    let Some(first) = answer.refused.first() else {
        let message = "EC2 launched nothing and gave no reason".to_owned();
        return LaunchError::Denied { reason: conditions::LAUNCH_FAILED.to_owned(), message };
    };
    let message = first.error().to_string();
    LaunchError::InsufficientCapacity { offerings: unavailable(&answer.refused, reservation, has_room), message }
}

/// Draws the consequence of a failed CreateFleet, which taught this of offerings.
pub fn call_failed(failed: Failed, offerings: Vec<UnavailableOffering>) -> LaunchError {
    let (error, in_doubt) = (failed.error, failed.in_doubt);
    let message = error.to_string();
    match &error {
        Error::TokenReused { .. } => LaunchError::TokenReused(message),
        _ if in_doubt => LaunchError::InDoubt(error.into()),
        Error::InsufficientCapacity { .. } => LaunchError::InsufficientCapacity { offerings, message },
        _ => CloudError::from(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use karp_aws::capacity_reservations::Taken;
    use karp_aws::fleet::{Choice, Override};
    use karp_domain::catalogue::{CapacityType, ReservationKind};

    use super::*;

    fn certain(error: Error) -> Failed {
        Failed { error, in_doubt: false }
    }

    fn refusal(code: &str) -> Refusal {
        Refusal {
            instance_type: "m7i.large".into(),
            zone: "us-east-1a".into(),
            subnet_id: "subnet-1".into(),
            capacity_type: CapacityType::Spot,
            code: code.into(),
            message: "m".into(),
        }
    }

    #[test]
    fn each_code_marks_as_much_as_it_concerns() {
        let refused =
            ["InsufficientInstanceCapacity", NO_ADDRESSES, NO_SPOT_ROLE, "UnauthorizedOperation", NO_SPOT_ROLE];
        let marked = unavailable(&refused.map(refusal), |_| None, |_| false);
        let places: Vec<_> = marked.iter().map(|one| (one.instance_type.as_str(), one.zone.as_str())).collect();
        assert_eq!(places, [("m7i.large", "us-east-1a"), ("", "us-east-1a"), ("", "")]);
        let held = unavailable(
            &[NO_ADDRESSES, "ReservationCapacityExceeded"].map(refusal),
            |_| Some("cr-1".to_owned()),
            |_| false,
        );
        let held: Vec<_> = held.iter().map(|one| one.reservation.as_deref()).collect();
        assert_eq!(held, [None, Some("cr-1")], "a full subnet is full for every reservation");
    }

    #[test]
    fn each_failure_has_karpenters_word() {
        let profile = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name";
        let networks = "Security group sg-1 and subnet subnet-1 belong to different networks.";
        for (code, message, expected) in [
            (NO_SPOT_ROLE, "", "SpotSLRCreationFailed"),
            ("UnauthorizedOperation", "You are not authorized", "Unauthorized"),
            ("UnauthorizedOperation", "Not authorized for images: image(s) [ami-1]", "AMIAuthorizationFailure"),
            ("AuthFailure", "Not authorized for images: [ami-1]", "AMIAuthorizationFailure"),
            ("InsufficientCidrBlocks", "", "InsufficientFreeAddressesInSubnet"),
            ("InvalidParameter", networks, "SecurityGroupSubnetVPCMismatch"),
            ("InvalidParameterValue", profile, "InstanceProfileNameInvalid"),
            ("NoSuchEntity", "Instance profile x not found", "InstanceProfileNameInvalid"),
            ("InvalidLaunchTemplateName.NotFoundException", "", "LaunchTemplateNotFound"),
            ("InvalidParameterValue", "User data is limited to 16384 bytes", "UserDataSizeLimitExceeded"),
            ("InvalidAMIID.Malformed", "", "InvalidAMIID"),
            ("InvalidAMIID.NotFound", "", "AMINotFound"),
            ("RequestLimitExceeded", "", "RequestLimitExceeded"),
            ("InternalError", "", "InternalError"),
            ("InvalidParameterCombination", "not eligible for Free Tier", "FreeTierIneligible"),
            ("MaxFleetCountExceeded", "", "FleetQuotaExceeded"),
            ("PendingVerification", "", "AccountPendingVerification"),
            ("MaxSpotInstanceCountExceeded", "", "SpotQuotaExceeded"),
            ("VcpuLimitExceeded", "", "VCPULimitExceeded"),
            (NO_ADDRESSES, "", "InsufficientFreeAddressesInSubnet"),
            ("SomethingNobodyHasSeen", "", "LaunchFailed"),
        ] {
            let error = Error::from_code("ec2:CreateFleet", code, message.to_owned());
            assert_eq!(reason(&error), expected, "{code} {message}");
        }
    }

    #[test]
    fn only_capacity_leads_to_another_offering() {
        let answer =
            |codes: &[&str]| Answer { refused: codes.iter().map(|code| refusal(code)).collect(), ..Answer::default() };
        let capacity = nothing_launched(&answer(&["InsufficientInstanceCapacity", NO_SPOT_ROLE]), |_| None, |_| false);
        assert!(matches!(&capacity, LaunchError::InsufficientCapacity { offerings, .. } if offerings.len() == 2));
        let refused =
            nothing_launched(&answer(&["InsufficientInstanceCapacity", "UnauthorizedOperation"]), |_| None, |_| false);
        assert!(matches!(&refused, LaunchError::Denied { reason, .. } if reason == "Unauthorized"));
        let silent = nothing_launched(&answer(&[]), |_| None, |_| false);
        assert!(matches!(&silent, LaunchError::Denied { reason, .. } if reason == "LaunchFailed"), "{silent:?}");
    }

    #[test]
    fn a_full_subnet_leaves_a_zone_alone_that_has_another() {
        let refused = [NO_ADDRESSES, "InsufficientInstanceCapacity"].map(refusal);
        let marked = |has_room: bool| {
            let marked = unavailable(&refused, |_| None, |_| has_room);
            marked.into_iter().map(|one| (one.instance_type, one.code)).collect::<Vec<_>>()
        };
        let missing = ("m7i.large".to_owned(), "InsufficientInstanceCapacity".to_owned());
        assert_eq!(marked(false), [(String::new(), NO_ADDRESSES.to_owned()), missing.clone()]);
        assert_eq!(marked(true), [missing]);
        let goes = |refused: &[Refusal], has_room| elsewhere(refused, |_| has_room).is_some();
        assert!(goes(&refused[..1], true), "only the subnet was wrong: the same again, in another");
        assert!(!goes(&refused[..1], false) && !goes(&refused, true) && !goes(&[], true));
    }

    #[test]
    fn a_call_that_fails_says_it_of_what_it_asked_for_and_of_nothing_else() {
        let one = |kind: &str, zone: &str| Override {
            instance_type: kind.into(),
            subnet_id: format!("subnet-{zone}"),
            zone: zone.into(),
            priority: None,
        };
        let choice =
            Choice { launch_template: "t".into(), overrides: vec![one("m5.large", "a"), one("m5.large", "b")] };
        let request = Request {
            client_token: "t".into(),
            capacity_type: CapacityType::Reserved,
            count: 1,
            reservation: Some(Taken { id: "cr-1".into(), kind: ReservationKind::Default, interruptible: false }),
            choices: vec![choice],
            tags: Default::default(),
            context: None,
        };
        let told = |code: &str| {
            let error = Error::from_code("ec2:CreateFleet", code, "m".to_owned());
            let marked = unavailable(&of_all(&error, &request), |_| Some("cr-1".to_owned()), |_| false);
            let LaunchError::InsufficientCapacity { offerings, .. } = call_failed(certain(error), marked) else {
                panic!("{code} is a matter of capacity")
            };
            offerings.into_iter().map(|one| (one.instance_type, one.zone, one.reservation)).collect::<Vec<_>>()
        };
        let named = |kind: &str, zone: &str, held: Option<&str>| (kind.into(), zone.into(), held.map(str::to_owned));
        let held = Some("cr-1");
        assert_eq!(
            told("ReservationCapacityExceeded"),
            [named("m5.large", "a", held), named("m5.large", "b", held)],
            "nothing of other types"
        );
        assert_eq!(told(NO_ADDRESSES), [named("", "a", None), named("", "b", None)]);
    }

    #[test]
    fn a_throttle_is_waited_for_and_marks_nothing() {
        let throttled = Error::from_code("ec2:CreateFleet", "RequestLimitExceeded", "m".to_owned());
        let failed = call_failed(certain(throttled), Vec::new());
        assert!(matches!(failed, LaunchError::Cloud(CloudError::Retry { after: Some(_), .. })), "{failed:?}");
        assert!(unavailable(&["RequestLimitExceeded", "InternalError"].map(refusal), |_| None, |_| false).is_empty());
    }

    #[test]
    fn a_lost_answer_is_asked_for_again() {
        let error = Error::Unreachable { action: "ec2:CreateFleet", message: "reset".into() };
        let failed = call_failed(Failed { error, in_doubt: true }, Vec::new());
        assert!(matches!(failed, LaunchError::InDoubt(CloudError::Retry { .. })), "{failed:?}");
        let refused = Error::from_code("ec2:CreateFleet", "InsufficientInstanceCapacity", "m".to_owned());
        let failed = call_failed(Failed { error: refused, in_doubt: true }, Vec::new());
        assert!(matches!(failed, LaunchError::InDoubt(_)), "an earlier attempt may have given it: {failed:?}");
    }
}
