//! What the selectors of a changed class find, and which nodes have something else: the rules by which the controller tells drift of the
//! cloud's kind (`placement_drift` and `drift` in `controller/src/cloud/aws`), told before they apply.

use std::collections::BTreeSet;

use karp_domain::api::{Ami, Ec2NodeClassStatus, NodeClaim, Subnet, labels};
use karp_domain::requirement::Operator;
use kube::ResourceExt;

use super::Certainty;

/// The attribute that selects images.
pub const IMAGES: &str = "ami_selector_terms";
/// The attribute that selects subnets.
pub const SUBNETS: &str = "subnet_selector_terms";
/// The attribute that selects security groups.
pub const SECURITY_GROUPS: &str = "security_group_selector_terms";
/// The attribute that selects capacity reservations.
pub const RESERVATIONS: &str = "capacity_reservation_selector_terms";

/// What selectors find once they are changed. A part is nothing where it was not looked up: it is not changed, or AWS did not tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// What the controller has found for the class as it is.
    pub before: Ec2NodeClassStatus,
    /// The images then.
    pub images: Option<Vec<Ami>>,
    /// The subnets then.
    pub subnets: Option<Vec<Subnet>>,
    /// The ids of the security groups then.
    pub security_groups: Option<BTreeSet<String>>,
}

/// What one attribute finds, before and after, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finds {
    /// The attribute.
    pub field: &'static str,
    /// What the controller has found so far; empty where that is not known.
    pub before: BTreeSet<String>,
    /// What it will find.
    pub after: BTreeSet<String>,
}

/// Answers the reason of a node whose class selects something else by this attribute; nothing for an attribute that is no selector.
pub fn reason_of(field: &str) -> Option<&'static str> {
    match field {
        IMAGES => Some("AMIDrift"),
        SUBNETS => Some("SubnetDrift"),
        SECURITY_GROUPS => Some("SecurityGroupDrift"),
        RESERVATIONS => Some("CapacityReservationDrift"),
        _ => None,
    }
}

impl Selection {
    /// Says how sure it is that a node drifts once a selector is changed; nothing where it surely stays. A selector that finds nothing makes
    /// the class unready, and drifts no node.
    pub fn drifts(&self, field: &str, claim: &NodeClaim) -> Option<Certainty> {
        match field {
            IMAGES => self.by_image(claim),
            SUBNETS => self.by_subnet(claim),
            SECURITY_GROUPS => self.by_security_groups(),
            RESERVATIONS => {
                let reserved = claim.labels().get(labels::CAPACITY_TYPE).is_some_and(|bought| bought == "reserved");
                reserved.then_some(Certainty::Possible)
            }
            _ => None,
        }
    }

    /// Tells what was looked up.
    pub fn finds(&self) -> Vec<Finds> {
        let ids = |all: &mut dyn Iterator<Item = &String>| all.cloned().collect::<BTreeSet<_>>();
        let before = &self.before;
        let images = self.images.as_ref().map(|found| Finds {
            field: IMAGES,
            before: ids(&mut before.amis.iter().map(|image| &image.id)),
            after: ids(&mut found.iter().map(|image| &image.id)),
        });
        let subnets = self.subnets.as_ref().map(|found| Finds {
            field: SUBNETS,
            before: ids(&mut before.subnets.iter().map(|subnet| &subnet.id)),
            after: ids(&mut found.iter().map(|subnet| &subnet.id)),
        });
        let groups = self.security_groups.as_ref().map(|found| Finds {
            field: SECURITY_GROUPS,
            before: self.groups_before(),
            after: found.clone(),
        });
        [images, subnets, groups].into_iter().flatten().collect()
    }

    fn by_image(&self, claim: &NodeClaim) -> Option<Certainty> {
        let Some(found) = &self.images else { return Some(Certainty::Possible) };
        // One without an image is launched with the new one.
        let own = claim.status.as_ref()?.image_id.as_ref()?;
        let fits = found.iter().any(|image| is_for(image, claim));
        (fits && !found.iter().any(|image| image.id == *own)).then_some(Certainty::Sure)
    }

    /// Of a node only the zone is known here, and of a zone the subnets that it may be in.
    fn by_subnet(&self, claim: &NodeClaim) -> Option<Certainty> {
        let Some(found) = &self.subnets else { return Some(Certainty::Possible) };
        if found.is_empty() {
            return None;
        }
        let zone = claim.labels().get(labels::ZONE);
        let may_be_in: Vec<&Subnet> =
            self.before.subnets.iter().filter(|subnet| zone.is_none_or(|zone| *zone == subnet.zone)).collect();
        let gone = may_be_in.iter().filter(|subnet| !found.iter().any(|kept| kept.id == subnet.id)).count();
        match gone {
            _ if may_be_in.is_empty() => Some(Certainty::Possible),
            0 => None,
            gone if gone == may_be_in.len() => Some(Certainty::Sure),
            _ => Some(Certainty::Possible),
        }
    }

    /// Each node has all groups of its class.
    fn by_security_groups(&self) -> Option<Certainty> {
        let Some(found) = &self.security_groups else { return Some(Certainty::Possible) };
        let before = self.groups_before();
        match found {
            _ if found.is_empty() => None,
            _ if before.is_empty() => Some(Certainty::Possible),
            found if *found == before => None,
            _ => Some(Certainty::Sure),
        }
    }

    fn groups_before(&self) -> BTreeSet<String> {
        self.before.security_groups.iter().map(|group| group.id.clone()).collect()
    }
}

/// Says whether a node like this one would get an image: the controller drifts none that it has no other image for.
fn is_for(image: &Ami, claim: &NodeClaim) -> bool {
    image.requirements.iter().all(|wanted| {
        let own = claim.labels().get(&wanted.key);
        match wanted.operator {
            Operator::In => own.is_some_and(|own| wanted.values.contains(own)),
            Operator::NotIn => own.is_none_or(|own| !wanted.values.contains(own)),
            Operator::DoesNotExist => own.is_none(),
            _ => own.is_some(),
        }
    })
}
