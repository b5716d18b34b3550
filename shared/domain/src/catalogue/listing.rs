//! Instance types as files list them: the form in which a catalogue is handed from one program to another.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use serde::{Deserialize, Serialize};

use super::{CapacityType, InstanceType, Offering, Price, PriceSource, UnknownCapacityType, Zone};
use crate::api::{RequirementSpec, labels};
use crate::requirement::Operator;
use crate::resources::{ParseResourcesError, Resources};

/// Holds one instance type of a list. What it is may be said by requirements (a key with the values it can take) or by labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// Name, such as `m7i.large`.
    pub name: String,
    /// The values that labels can take; zone and capacity type are told by the offerings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<RequirementSpec>,
    /// Labels that every node of the type has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `status.capacity` of a node; what is allocatable if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<BTreeMap<String, KubeQuantity>>,
    /// What pods and daemons together can ask for; the capacity if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<BTreeMap<String, KubeQuantity>>,
    /// EBS volumes of pods that a node can attach; unknown if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachable_volumes: Option<u32>,
    /// Ways to buy it.
    pub offerings: Vec<ListedOffering>,
}

/// Holds one way to buy a listed type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedOffering {
    /// Zone by name.
    pub zone: String,
    /// Zone by id, if it is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone_id: String,
    /// `spot`, `on-demand` or `reserved`.
    pub capacity_type: String,
    /// Dollars per hour.
    pub price: f64,
    /// The price is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Can be had now.
    #[serde(default = "yes")]
    pub available: bool,
}

fn yes() -> bool {
    true
}

/// Says why a listed type cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ListingError {
    /// An amount is no quantity.
    #[error("{0}")]
    Resources(#[from] ParseResourcesError),
    /// An offering has a capacity type that does not exist.
    #[error("offerings[{at}].capacityType: {source}")]
    CapacityType {
        /// Place in the list.
        at: usize,
        /// What is wrong.
        source: UnknownCapacityType,
    },
    /// A price is negative or not a number.
    #[error("offerings[{at}].price: {price} is no price: dollars per hour, not negative")]
    Price {
        /// Place in the list.
        at: usize,
        /// What was read.
        price: f64,
    },
    /// A requirement does not tell values.
    #[error("requirements[{at}]: {operator:?} does not say what {key} is: use In, or DoesNotExist")]
    Operator {
        /// Place in the list.
        at: usize,
        /// Label.
        key: String,
        /// What was read.
        operator: Operator,
    },
    /// There is neither capacity nor allocatable.
    #[error("allocatable is missing, and so is capacity")]
    NoRoom,
}

impl TryFrom<&Listing> for InstanceType {
    type Error = ListingError;

    fn try_from(listing: &Listing) -> Result<Self, ListingError> {
        let read = |list: &Option<BTreeMap<_, _>>| list.as_ref().map(Resources::try_from_api).transpose();
        let (capacity, allocatable) = match (read(&listing.capacity)?, read(&listing.allocatable)?) {
            (Some(capacity), Some(allocatable)) => (capacity, allocatable),
            (Some(one), None) | (None, Some(one)) => (one.clone(), one),
            (None, None) => return Err(ListingError::NoRoom),
        };
        let mut all: BTreeMap<_, _> =
            listing.labels.iter().map(|(key, value)| (key.as_str().into(), vec![value.as_str().into()])).collect();
        all.insert(labels::INSTANCE_TYPE.into(), vec![listing.name.as_str().into()]);
        for (at, told) in listing.requirements.iter().enumerate() {
            let from_offerings = matches!(told.key.as_str(), labels::ZONE | labels::ZONE_ID | labels::CAPACITY_TYPE);
            match told.operator {
                _ if from_offerings => {}
                Operator::In => {
                    all.insert(told.key.as_str().into(), told.values.iter().map(|v| v.as_str().into()).collect());
                }
                Operator::DoesNotExist => {}
                operator => return Err(ListingError::Operator { at, key: told.key.clone(), operator }),
            }
        }
        Ok(InstanceType {
            name: listing.name.as_str().into(),
            labels: all,
            overhead: capacity.minus(&allocatable),
            capacity,
            attachable: listing.attachable_volumes,
            efa_places: Vec::new(),
            offerings: listing.offerings.iter().enumerate().map(offering).collect::<Result<_, _>>()?,
        })
    }
}

fn offering((at, listed): (usize, &ListedOffering)) -> Result<Offering, ListingError> {
    let capacity_type: CapacityType =
        listed.capacity_type.parse().map_err(|source| ListingError::CapacityType { at, source })?;
    Ok(Offering {
        capacity_type,
        zone: Zone::new(&listed.zone, &listed.zone_id),
        price: Price::from_dollars(listed.price).ok_or(ListingError::Price { at, price: listed.price })?,
        source: if listed.estimated { PriceSource::Estimated } else { PriceSource::Published },
        available: listed.available,
        reservation: None,
    })
}

impl From<&InstanceType> for Listing {
    /// Lists a type with the labels that every node of it has, wherever it is bought: those of one value, without the region.
    fn from(kind: &InstanceType) -> Self {
        let fixed = kind.labels.iter().filter_map(|(key, values)| match values.as_slice() {
            [value] if &**key != labels::REGION => Some((key.to_string(), value.to_string())),
            _ => None,
        });
        let offerings = kind.offerings.iter().map(|offering| ListedOffering {
            zone: offering.zone.name.to_string(),
            zone_id: offering.zone.id.to_string(),
            capacity_type: offering.capacity_type.to_string(),
            price: offering.price.dollars(),
            estimated: offering.source == PriceSource::Estimated,
            available: offering.available,
        });
        Listing {
            name: kind.name.to_string(),
            requirements: Vec::new(),
            labels: fixed.collect(),
            capacity: Some(kind.capacity.to_api()),
            allocatable: Some(kind.allocatable().to_api()),
            attachable_volumes: kind.attachable,
            offerings: offerings.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::{NodeSettings, builtin_type, offerings};

    fn listed(value: serde_json::Value) -> Result<InstanceType, String> {
        let listing: Listing = serde_json::from_value(value).map_err(|e| e.to_string())?;
        InstanceType::try_from(&listing).map_err(|e| e.to_string())
    }

    #[test]
    fn a_type_says_itself_again_by_its_labels() {
        let facts = builtin_type("m7i.large").unwrap();
        let zones = [Zone::new("us-east-1a", "use1-az1")];
        let kind = InstanceType::from_facts(facts, &NodeSettings::default(), offerings(facts, &zones, |_, _| None));
        let again = listed(serde_json::to_value(Listing::from(&kind)).unwrap()).unwrap();
        assert_eq!((again.allocatable(), &again.capacity), (kind.allocatable(), &kind.capacity));
        assert_eq!(again.offerings, kind.offerings);
        assert!(again.labels.iter().all(|(key, values)| kind.labels[key] == *values));
        assert_eq!(Listing::from(&again), Listing::from(&kind));
    }

    #[test]
    fn requirements_are_read_and_faults_are_named() {
        let offering = json!({"zone": "z", "capacityType": "spot", "price": 0.5, "available": false});
        let base = |requirement: serde_json::Value, offering: serde_json::Value| json!({"name": "t", "requirements": [requirement], "offerings": [offering], "allocatable": {"cpu": "1"}});
        let arch = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]});
        let kind = listed(base(arch.clone(), offering.clone())).unwrap();
        assert_eq!(kind.labels["kubernetes.io/arch"].len(), 2);
        assert_eq!((kind.offerings[0].available, kind.cheapest()), (false, None));
        let gt = json!({"key": "size", "operator": "Gt", "values": ["3"]});
        let message = listed(base(gt, offering)).unwrap_err();
        assert_eq!(message, "requirements[0]: Gt does not say what size is: use In, or DoesNotExist");
        let free = json!({"zone": "z", "capacityType": "spot", "price": -1.0});
        assert!(listed(base(arch.clone(), free)).unwrap_err().starts_with("offerings[0].price"));
        let odd = json!({"zone": "z", "capacityType": "sport", "price": 1.0});
        assert!(listed(base(arch, odd)).unwrap_err().starts_with("offerings[0].capacityType"));
    }
}
