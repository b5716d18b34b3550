//! Subnets that had no free address when EC2 was last asked for an instance in them.

use std::collections::BTreeMap;
use std::time::Duration;

use karp_aws::subnets;
use karp_domain::api::Subnet;
use moka::sync::Cache;

/// How long a full subnet is passed over: as long as a missing offering at first. Until then it was described anew, too.
const MEMORY: Duration = Duration::from_secs(180);
/// Subnets that are remembered; an account has 200 in a VPC unless it asks for more.
const CAPACITY: u64 = 10_000;

/// Remembers full subnets.
pub struct Addresses {
    full: Cache<String, ()>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { full: Cache::builder().max_capacity(CAPACITY).time_to_live(MEMORY).build() }
    }
}

impl Addresses {
    /// Notes that a subnet has no address left.
    pub fn ran_out(&self, subnet: &str) {
        self.full.insert(subnet.to_owned(), ());
    }

    /// Says whether a zone has a subnet among these that is not known to be full.
    pub fn has_room(&self, zone: &str, subnets: &[Subnet]) -> bool {
        subnets.iter().any(|subnet| subnet.zone == zone && !self.is_full(&subnet.id))
    }

    /// Chooses a subnet for each zone: of those that are not full the one with the most free addresses when it was last described (`known`),
    /// or the first; in a zone where all are full, as if none were.
    pub fn choose(&self, known: &[subnets::Subnet], subnets: &[Subnet]) -> BTreeMap<String, Subnet> {
        let has_room = |subnet: &&Subnet| !self.is_full(&subnet.id) || !self.has_room(&subnet.zone, subnets);
        let open: Vec<&Subnet> = subnets.iter().filter(has_room).collect();
        let mut chosen: BTreeMap<String, Subnet> =
            open.iter().rev().map(|subnet| (subnet.zone.clone(), (*subnet).clone())).collect();
        let known: Vec<subnets::Subnet> =
            known.iter().filter(|one| open.iter().any(|subnet| subnet.id == one.id)).cloned().collect();
        for (zone, best) in subnets::one_per_zone(&known) {
            if let Some(subnet) = open.iter().find(|one| one.id == best.id) {
                chosen.insert(zone.to_owned(), (*subnet).clone());
            }
        }
        chosen
    }

    fn is_full(&self, subnet: &str) -> bool {
        self.full.contains_key(subnet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(id: &str, zone: &str) -> Subnet {
        Subnet { id: id.to_owned(), zone: zone.to_owned(), zone_id: None }
    }

    fn described(id: &str, zone: &str, free_addresses: u32) -> subnets::Subnet {
        subnets::Subnet {
            id: id.to_owned(),
            zone: zone.to_owned(),
            zone_id: String::new(),
            vpc_id: String::new(),
            free_addresses,
            public_on_launch: false,
            tags: BTreeMap::new(),
        }
    }

    #[test]
    fn the_roomiest_subnet_that_is_not_full_is_chosen() {
        let addresses = Addresses::default();
        let subnets = [subnet("s-1", "a"), subnet("s-2", "a"), subnet("s-3", "b")];
        let known = [described("s-1", "a", 5), described("s-2", "a", 90), described("s-3", "b", 1)];
        let chosen = |known: &[subnets::Subnet]| {
            let chosen = addresses.choose(known, &subnets);
            chosen.into_values().map(|subnet| subnet.id).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&known), ["s-2", "s-3"]);
        assert_eq!(chosen(&[]), ["s-1", "s-3"], "nothing is described yet: the first");
        addresses.ran_out("s-2");
        assert_eq!((chosen(&known), addresses.has_room("a", &subnets)), (vec!["s-1".into(), "s-3".into()], true));
        addresses.ran_out("s-1");
        assert_eq!(chosen(&known), ["s-2", "s-3"], "all are full: as before");
        assert!(!addresses.has_room("a", &subnets) && addresses.has_room("b", &subnets));
    }
}
