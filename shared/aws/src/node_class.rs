//! The selectors of an EC2NodeClass in the words of EC2, and what they find in those of its status. Pure: nothing is asked of anyone.

use crate::error::Error;
use crate::images::{self, Alias, Image};
use crate::selector::Term;
use crate::subnets;
use karp_domain::api::{
    Ami, AmiRequirement, AmiSelectorTerm, Ec2NodeClassSpec, SecurityGroupSelectorTerm, Subnet, SubnetSelectorTerm,
};
use karp_domain::requirement::Operator;

/// Returns the class's alias, if it has one.
///
/// # Errors
/// [`Error::InvalidRequest`] when it cannot be read.
pub fn alias(spec: &Ec2NodeClassSpec) -> Result<Option<Alias>, Error> {
    let text = spec.ami_selector_terms.iter().find_map(|term| term.alias.as_deref());
    text.map(Alias::parse).transpose()
}

/// Returns the image terms that are not aliases.
#[must_use]
pub fn image_terms(spec: &Ec2NodeClassSpec) -> Vec<images::Term> {
    let others = spec.ami_selector_terms.iter().filter(|term| term.alias.is_none());
    let term = |term: &AmiSelectorTerm| images::Term {
        id: term.id.clone(),
        name: term.name.clone(),
        owner: term.owner.clone(),
        tags: term.tags.clone(),
        ssm_parameter: term.ssm_parameter.clone(),
    };
    others.map(term).collect()
}

/// Returns the subnet terms.
#[must_use]
pub fn subnet_terms(spec: &Ec2NodeClassSpec) -> Vec<Term> {
    let term = |term: &SubnetSelectorTerm| Term { id: term.id.clone(), name: None, tags: term.tags.clone() };
    spec.subnet_selector_terms.iter().map(term).collect()
}

/// Returns the security group terms.
#[must_use]
pub fn security_group_terms(spec: &Ec2NodeClassSpec) -> Vec<Term> {
    let term = |term: &SecurityGroupSelectorTerm| Term {
        id: term.id.clone(),
        name: term.name.clone(),
        tags: term.tags.clone(),
    };
    spec.security_group_selector_terms.iter().map(term).collect()
}

/// Describes a subnet as a class's status does.
#[must_use]
pub fn subnet(found: &subnets::Subnet) -> Subnet {
    Subnet {
        id: found.id.clone(),
        zone: found.zone.clone(),
        zone_id: Some(found.zone_id.clone()).filter(|id| !id.is_empty()),
    }
}

/// Describes an image as a class's status does.
#[must_use]
pub fn ami(image: Image) -> Ami {
    let operator = |text: &str| match text {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => Operator::Exists,
    };
    let requirements = image.requirements().into_iter().map(|(key, text, values)| AmiRequirement {
        key: key.to_owned(),
        operator: operator(text),
        values,
    });
    Ami {
        requirements: requirements.collect(),
        id: image.id,
        name: Some(image.name).filter(|name| !name.is_empty()),
        deprecated: image.deprecated.then_some(true),
    }
}
