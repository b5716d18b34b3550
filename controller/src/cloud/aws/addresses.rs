//! Which subnet a launch goes to: free addresses as last described, less what was launched since, and subnets that EC2 said are full.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karp_aws::change::Failed;
use karp_aws::fleet::{Answer, Launched, Override, Request};
use karp_aws::subnets;
use karp_domain::addresses::{self, Mark, Outcome};
use karp_domain::api::Subnet;
use moka::sync::Cache;

/// How long a full subnet is passed over: as long as a missing offering at first. Until then it was described anew, too.
const MEMORY: Duration = Duration::from_secs(180);
/// Subnets that are remembered; an account has 200 in a VPC unless it asks for more.
const CAPACITY: u64 = 10_000;

/// Remembers full subnets, and counts the addresses of all.
pub struct Addresses {
    full: Cache<String, ()>,
    counted: Mutex<addresses::Addresses>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { full: Cache::builder().max_capacity(CAPACITY).time_to_live(MEMORY).build(), counted: Mutex::default() }
    }
}

impl Addresses {
    /// Marks that subnets are about to be described.
    pub fn ask(&self) -> Mark {
        self.counted().ask()
    }

    /// Notes what subnets have free.
    pub fn describe(&self, asked: Mark, found: &[subnets::Subnet]) {
        self.counted().describe(asked, found.iter().map(|subnet| (subnet.id.clone(), subnet.free_addresses)));
    }

    /// Subtracts what a request may take, from each subnet that it names: for each instance what the type needs that needs the fewest there.
    /// `needs` are addresses by type.
    pub fn take(&self, request: &Request, needs: &BTreeMap<String, u32>) {
        let mut least: BTreeMap<String, u32> = BTreeMap::new();
        for one in overrides(request) {
            let need = need(needs, &one.instance_type);
            least.entry(one.subnet_id.clone()).and_modify(|least| *least = need.min(*least)).or_insert(need);
        }
        let wanted = least.into_iter().map(|(subnet, need)| (subnet, need.saturating_mul(request.count)));
        self.counted().take(&request.client_token, wanted);
    }

    /// Gives back what the answer says was not taken.
    pub fn settle(&self, request: &Request, needs: &BTreeMap<String, u32>, answer: &Result<Answer, Failed>) {
        let outcome = match answer {
            Ok(answer) => {
                let mut took: BTreeMap<String, u32> = BTreeMap::new();
                for one in &answer.launched {
                    *took.entry(subnet_of(request, one).to_owned()).or_default() += need(needs, &one.instance_type);
                }
                Outcome::Took(took)
            }
            Err(failed) if failed.in_doubt => Outcome::InDoubt,
            Err(_) => Outcome::Took(BTreeMap::new()),
        };
        self.counted().settle(&request.client_token, &outcome);
    }

    /// Notes that a subnet has no address left.
    pub fn ran_out(&self, subnet: &str) {
        self.full.insert(subnet.to_owned(), ());
    }

    /// Says whether a zone has a subnet among these that is not known to be full.
    pub fn has_room(&self, zone: &str, subnets: &[Subnet]) -> bool {
        subnets.iter().any(|subnet| subnet.zone == zone && !self.is_full(&subnet.id))
    }

    /// Chooses a subnet for each zone: of those that are not full the one with the most addresses left, or the first; in a zone where all are
    /// full, as if none were.
    pub fn choose(&self, subnets: &[Subnet]) -> BTreeMap<String, Subnet> {
        let counted = self.counted();
        let has_room = |subnet: &&Subnet| !self.is_full(&subnet.id) || !self.has_room(&subnet.zone, subnets);
        let mut chosen: BTreeMap<String, Subnet> = BTreeMap::new();
        for subnet in subnets.iter().filter(has_room) {
            let best = chosen.entry(subnet.zone.clone()).or_insert_with(|| subnet.clone());
            if counted.left(&subnet.id) > counted.left(&best.id) {
                *best = subnet.clone();
            }
        }
        chosen
    }

    fn is_full(&self, subnet: &str) -> bool {
        self.full.contains_key(subnet)
    }

    fn counted(&self) -> MutexGuard<'_, addresses::Addresses> {
        // The lock is held over plain map operations only; what a panic there left is still a map.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn overrides(request: &Request) -> impl Iterator<Item = &Override> {
    request.choices.iter().flat_map(|choice| &choice.overrides)
}

/// Addresses that an instance of a type needs; one is its own.
fn need(needs: &BTreeMap<String, u32>, instance_type: &str) -> u32 {
    needs.get(instance_type).copied().unwrap_or(1)
}

/// The subnet of an instance; where EC2 does not say, the request has one for its zone.
fn subnet_of<'a>(request: &'a Request, launched: &'a Launched) -> &'a str {
    if !launched.subnet_id.is_empty() {
        return &launched.subnet_id;
    }
    let same = |one: &&Override| one.instance_type == launched.instance_type && one.zone == launched.zone;
    overrides(request).find(same).map_or("", |one| &one.subnet_id)
}

#[cfg(test)]
mod tests {
    use karp_aws::Error;
    use karp_aws::fleet::Choice;
    use karp_domain::catalogue::CapacityType;

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

    fn chosen(addresses: &Addresses, subnets: &[Subnet]) -> Vec<String> {
        addresses.choose(subnets).into_values().map(|subnet| subnet.id).collect()
    }

    #[test]
    fn the_roomiest_subnet_that_is_not_full_is_chosen() {
        let addresses = Addresses::default();
        let subnets = [subnet("s-1", "a"), subnet("s-2", "a"), subnet("s-3", "b"), subnet("s-4", "b")];
        let chosen = || chosen(&addresses, &subnets);
        assert_eq!(chosen(), ["s-1", "s-3"], "nothing is described yet: the first");
        let known =
            [described("s-1", "a", 5), described("s-2", "a", 90), described("s-3", "b", 1), described("s-4", "b", 1)];
        addresses.describe(addresses.ask(), &known);
        assert_eq!(chosen(), ["s-2", "s-3"], "the first of those with as many");
        addresses.ran_out("s-2");
        assert_eq!((chosen(), addresses.has_room("a", &subnets)), (vec!["s-1".into(), "s-3".into()], true));
        addresses.ran_out("s-1");
        assert_eq!(chosen(), ["s-2", "s-3"], "all are full: as before");
        assert!(!addresses.has_room("a", &subnets) && addresses.has_room("b", &subnets));
    }

    #[test]
    fn a_burst_of_launches_spreads_over_the_subnets_of_a_zone() {
        let addresses = Addresses::default();
        let subnets = [subnet("s-1", "a"), subnet("s-2", "a"), subnet("s-3", "b")];
        let known = [described("s-1", "a", 200), described("s-2", "a", 180), described("s-3", "b", 250)];
        addresses.describe(addresses.ask(), &known);
        let needs = BTreeMap::from([("m7i.large".to_owned(), 29), ("m7i.xlarge".to_owned(), 58)]);
        let request = |number: u32, count| {
            let each = chosen(&addresses, &subnets).into_iter().zip(["a", "b"]);
            let place = |(subnet_id, zone): (String, &str)| {
                ["m7i.large", "m7i.xlarge"].map(|kind| Override {
                    instance_type: kind.to_owned(),
                    subnet_id: subnet_id.clone(),
                    zone: zone.to_owned(),
                    priority: None,
                })
            };
            Request {
                client_token: format!("t-{number}"),
                capacity_type: CapacityType::Spot,
                count,
                reservation: None,
                choices: vec![Choice { launch_template: "t".into(), overrides: each.flat_map(place).collect() }],
                tags: BTreeMap::new(),
                context: None,
            }
        };
        let left = || ["s-1", "s-2", "s-3"].map(|id| addresses.counted().left(id).expect("it is described"));
        let one = |request: &Request, kind: &str| Launched {
            instance_id: "i-1".into(),
            instance_type: kind.into(),
            zone: "a".into(),
            subnet_id: String::new(),
            capacity_type: request.capacity_type,
        };

        let first = request(1, 2);
        addresses.take(&first, &needs);
        assert_eq!(left(), [142, 180, 192], "two of the smaller type, in either zone");
        assert_eq!(chosen(&addresses, &subnets), ["s-2", "s-3"], "while the first is asked for");
        let launched = vec![one(&first, "m7i.large"), one(&first, "m7i.xlarge")];
        addresses.settle(&first, &needs, &Ok(Answer { launched, ..Answer::default() }));
        assert_eq!(left(), [113, 180, 250], "both went to zone a, one of them bigger");

        let failed = |in_doubt| {
            let error = Error::Unreachable { action: "ec2:CreateFleet", message: "reset".into() };
            Err(Failed { error, in_doubt })
        };
        let second = request(2, 1);
        addresses.take(&second, &needs);
        addresses.settle(&second, &needs, &failed(false));
        assert_eq!(left(), [113, 180, 250]);
        addresses.take(&second, &needs);
        addresses.settle(&second, &needs, &failed(true));
        assert_eq!(left(), [113, 151, 221], "it may have been launched");
        addresses.describe(addresses.ask(), &known);
        assert_eq!(left(), [200, 180, 250], "EC2 has told since");
    }
}
