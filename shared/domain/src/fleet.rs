//! What a launch that EC2 refused teaches: that an offering is missing for now, that the call came too early, or neither.

use std::time::Duration;

use crate::catalogue::CapacityType;

/// EC2 may not make its role for spot instances in this account: no spot offering can be had until somebody makes it.
pub const NO_SPOT_ROLE: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";
/// A subnet is full: every type in its zone is affected.
pub const NO_ADDRESSES: &str = "InsufficientFreeAddressesInSubnet";
/// A subnet has no block left for a prefix, though it may have single addresses.
const NO_PREFIXES: &str = "InsufficientCidrBlocks";
/// What EC2 says of a subnet, under a general code, that has fewer addresses than the prefixes of an interface want.
const TOO_FEW_ADDRESSES: &str = "sufficient free Ipv4 addresses or prefixes";

/// A launch that EC2 refuses for a reason that stays is tried again after this long: somebody may have put it right.
pub const REFUSED_WAIT: Duration = Duration::from_secs(60);

/// Says what EC2's code for a refusal teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// What was asked for cannot be had here now: something else may.
    Missing(Extent),
    /// EC2 did not look at what was asked for, since the call was one too many or EC2 is not well: the same call again after a wait.
    Wait,
    /// Nothing about offerings, and no wait helps by itself.
    Nothing,
}

/// Says how much is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The type in the zone.
    Offering,
    /// All types in the zone.
    Zone,
    /// All that is bought in this way.
    Market,
}

/// Returns the code that stands for what EC2 says: it has several ways to say that a subnet is full.
pub fn known_as<'c>(code: &'c str, message: &str) -> &'c str {
    let full = code == NO_PREFIXES || code == "InvalidParameterValue" && message.contains(TOO_FEW_ADDRESSES);
    if full { NO_ADDRESSES } else { code }
}

/// Answers what a code of EC2 teaches. The codes are those of the EC2 API reference's "Error codes".
pub fn lesson(code: &str) -> Lesson {
    match code {
        NO_SPOT_ROLE => Lesson::Missing(Extent::Market),
        NO_ADDRESSES => Lesson::Missing(Extent::Zone),
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientCapacityOnHost"
        | "MaxFleetCountExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "ReservationCapacityExceeded"
        | "SpotMaxPriceTooLow"
        | "UnfulfillableCapacity"
        | "Unsupported"
        | "UnsupportedOperation"
        | "VcpuLimitExceeded" => Lesson::Missing(Extent::Offering),
        "RequestLimitExceeded"
        | "Client.RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "EC2ThrottledException"
        | "ServiceUnavailable"
        | "ServiceUnavailableException"
        | "Unavailable"
        | "InternalError"
        | "InternalFailure"
        | "InternalServiceError"
        | "ServerException" => Lesson::Wait,
        _ => Lesson::Nothing,
    }
}

/// Names an offering that could not be had, or several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnavailableOffering {
    /// Type; empty for all types.
    pub instance_type: String,
    /// Zone; empty for all zones.
    pub zone: String,
    /// How it was to be bought.
    pub capacity_type: CapacityType,
    /// The capacity reservation that it was to come from: others of the type and zone may have room.
    pub reservation: Option<String>,
    /// The cloud's code.
    pub code: String,
}

impl UnavailableOffering {
    /// Names all that is missing when this one was refused, as far as the lesson of its code goes; nothing when the lesson is another.
    #[must_use]
    pub fn learnt(self, lesson: Lesson) -> Option<Self> {
        match lesson {
            Lesson::Missing(Extent::Offering) => Some(self),
            // a full subnet is full for every reservation
            Lesson::Missing(Extent::Zone) => {
                Some(UnavailableOffering { instance_type: String::new(), reservation: None, ..self })
            }
            Lesson::Missing(Extent::Market) => Some(UnavailableOffering {
                instance_type: String::new(),
                zone: String::new(),
                reservation: None,
                ..self
            }),
            Lesson::Wait | Lesson::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> Option<UnavailableOffering> {
        let offering = UnavailableOffering {
            instance_type: "m7i.large".to_owned(),
            zone: "a".to_owned(),
            capacity_type: CapacityType::Spot,
            reservation: Some("cr-1".to_owned()),
            code: code.to_owned(),
        };
        offering.learnt(lesson(code))
    }

    #[test]
    fn each_code_teaches_as_much_as_it_concerns() {
        let learnt = |code| refused(code).map(|one| (one.instance_type, one.zone, one.reservation));
        let named = |kind: &str, zone: &str, held: Option<&str>| {
            Some((kind.to_owned(), zone.to_owned(), held.map(str::to_owned)))
        };
        assert_eq!(learnt("InsufficientInstanceCapacity"), named("m7i.large", "a", Some("cr-1")));
        assert_eq!(learnt(NO_ADDRESSES), named("", "a", None));
        assert_eq!(learnt(NO_SPOT_ROLE), named("", "", None));
        let no_ipv6 = "UnsupportedOperation";
        assert_eq!(
            learnt(no_ipv6),
            named("m7i.large", "a", Some("cr-1")),
            "the type cannot do what the template asks for"
        );
    }

    #[test]
    fn a_subnet_without_room_for_prefixes_is_full() {
        let (odd, few) = ("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes");
        assert_eq!(known_as("InsufficientCidrBlocks", "not enough free cidr blocks"), NO_ADDRESSES);
        assert_eq!(known_as(odd, few), NO_ADDRESSES);
        assert_eq!(known_as(odd, "Invalid IAM Instance Profile name"), odd);
        assert_eq!(known_as("InsufficientInstanceCapacity", few), "InsufficientInstanceCapacity");
    }

    #[test]
    fn throttles_and_outages_teach_nothing_of_offerings() {
        for code in ["RequestLimitExceeded", "Throttling", "InternalError", "ServiceUnavailable"] {
            assert_eq!((lesson(code), refused(code)), (Lesson::Wait, None), "{code}");
        }
        assert_eq!((lesson("UnauthorizedOperation"), refused("UnauthorizedOperation")), (Lesson::Nothing, None));
    }
}
