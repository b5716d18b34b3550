//! What a node class asks of the hardware.

use serde::{Deserialize, Serialize};

use super::InstanceFacts;
use crate::api::{Ec2NodeClassSpec, InterfaceType, NetworkInterface, Toggle};

/// Holds what a node class asks for that not every instance type has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Demands {
    /// Network interfaces by card and place; those that every type has when empty.
    pub interfaces: Vec<NetworkInterface>,
    /// Nodes may run Nitro Enclaves.
    pub enclaves: bool,
    /// Whether nodes may run virtual machines, where it is said.
    pub nested_vms: Option<bool>,
    /// Nodes set time-outs of connection tracking, which Xen cannot.
    pub connection_tracking: bool,
    /// Nodes are in a placement group of strategy `cluster`. The class names the group only: who knows it sets this.
    pub cluster_group: bool,
}

impl Demands {
    /// Reads them from a class.
    pub fn from_class(class: &Ec2NodeClassSpec) -> Self {
        let nested = class.cpu_options.as_ref().and_then(|options| options.nested_virtualization);
        Demands {
            interfaces: class.network_interfaces.to_vec(),
            enclaves: class.enclave_options.as_ref().is_some_and(|options| options.enabled),
            nested_vms: nested.map(|toggle| toggle == Toggle::Enabled),
            connection_tracking: class.connection_tracking.is_some(),
            cluster_group: false,
        }
    }

    /// Says whether a type has all that: cards and places for the interfaces, and EFA where interfaces are for EFA only.
    pub fn are_met_by(&self, facts: &InstanceFacts) -> bool {
        let at = |index: i32| u32::try_from(index).unwrap_or(u32::MAX);
        let placed = |one: &NetworkInterface| {
            let room = if one.network_card_index == 0 { facts.enis } else { facts.further_enis };
            at(one.network_card_index) < facts.network_cards && at(one.device_index) < room
        };
        let efa_only = self.interfaces.iter().filter(|one| one.interface_type == InterfaceType::EfaOnly);
        self.interfaces.iter().all(placed)
            && efa_only.clone().all(|one| facts.takes_efa(at(one.network_card_index)))
            && efa_only.count() <= facts.efa as usize
            && (facts.enclaves || !self.enclaves)
            && (facts.nested_vms || self.nested_vms != Some(true))
            && (facts.hypervisor != "xen" || !self.connection_tracking)
            && (facts.cluster_groups || !self.cluster_group)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::catalogue::builtin_type;

    fn met(spec: &Value) -> Vec<String> {
        let mut whole = serde_json::to_value(Ec2NodeClassSpec::default()).unwrap();
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let demands = Demands::from_class(&serde_json::from_value(whole).unwrap());
        let types = ["m5.xlarge", "m8i.large", "t3.large", "p4d.24xlarge"];
        let facts = types.iter().map(|name| builtin_type(name).unwrap());
        facts.filter(|facts| demands.are_met_by(facts)).map(|facts| facts.name.clone()).collect()
    }

    #[test]
    fn only_types_with_what_the_class_asks_for_meet_it() {
        assert_eq!(met(&json!({})).len(), 4);
        assert_eq!(met(&json!({"enclaveOptions": {"enabled": true}})), ["m5.xlarge", "p4d.24xlarge"]);
        assert_eq!(met(&json!({"cpuOptions": {"nestedVirtualization": "enabled"}})), ["m8i.large"]);
        assert_eq!(met(&json!({"cpuOptions": {"nestedVirtualization": "disabled"}})).len(), 4);
        let first = json!({"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"});
        let at = |card: i32, device: i32, kind: &str| {
            let one = json!({"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind});
            met(&json!({"networkInterfaces": [first, one]}))
        };
        assert_eq!(at(0, 3, "interface"), ["m5.xlarge", "p4d.24xlarge"], "the others have three interfaces");
        assert_eq!(at(3, 1, "interface"), ["p4d.24xlarge"], "four cards");
        assert_eq!(at(0, 1, "efa-only"), ["p4d.24xlarge"]);
        assert!(at(4, 1, "efa-only").is_empty());
    }

    #[test]
    fn interfaces_for_efa_alone_need_a_card_that_takes_them() {
        let b300 = builtin_type("p6-b300.48xlarge").unwrap();
        let efa_only = |card| Demands {
            interfaces: vec![NetworkInterface {
                network_card_index: card,
                device_index: 1,
                interface_type: InterfaceType::EfaOnly,
            }],
            ..Demands::default()
        };
        assert!(!efa_only(0).are_met_by(b300), "its first card is for IP alone");
        assert!(efa_only(16).are_met_by(b300) && !efa_only(17).are_met_by(b300));
    }

    #[test]
    fn xen_tracks_no_connections_and_burstable_types_are_in_no_cluster() {
        let all = ["c4.large", "m5.large", "m5.metal", "t3.large", "m7i-flex.large", "m7i.large"];
        let met = |demands: &Demands| {
            let facts = all.iter().filter(|name| demands.are_met_by(builtin_type(name).unwrap()));
            facts.copied().collect::<Vec<_>>()
        };
        assert_eq!(met(&Demands::default()), all);
        let tracked = serde_json::from_value(json!({"amiSelectorTerms": [], "subnetSelectorTerms": [],
            "securityGroupSelectorTerms": [], "connectionTracking": {"udpTimeout": 30}}));
        assert_eq!(met(&Demands::from_class(&tracked.unwrap())), all[1..], "bare metal is Nitro, too");
        let near = Demands { cluster_group: true, ..Demands::default() };
        assert_eq!(met(&near), ["c4.large", "m5.large", "m5.metal", "m7i.large"]);
    }
}
