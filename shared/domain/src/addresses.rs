//! Free addresses of subnets. EC2 says how many there are once in a while; what was launched since is subtracted here, so that a burst of launches
//! spreads over the subnets of a zone instead of filling the one that was roomiest before it.

use std::collections::BTreeMap;

/// Counts the free addresses of subnets.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    now: Mark,
    subnets: BTreeMap<String, Subnet>,
}

/// A point in the order of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

#[derive(Clone, Debug, Default)]
struct Subnet {
    /// Free addresses as last described.
    free: u32,
    /// When that was asked for.
    asked: Mark,
    /// What launches take that the description may not show, by their tokens.
    launches: BTreeMap<String, Launch>,
}

#[derive(Clone, Copy, Debug)]
struct Launch {
    addresses: u32,
    /// When it was answered.
    settled: Option<Mark>,
}

/// What a launch came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many addresses were taken in these subnets, and none elsewhere.
    Took(BTreeMap<String, u32>),
    /// Nobody knows: what it wanted counts as taken.
    InDoubt,
}

impl Addresses {
    /// Marks that subnets are about to be described.
    pub fn ask(&mut self) -> Mark {
        self.now.0 += 1;
        self.now
    }

    /// Notes how many addresses are free. Launches that were answered before that was asked for are part of it; others are still subtracted.
    pub fn describe(&mut self, asked: Mark, free: impl IntoIterator<Item = (String, u32)>) {
        for (id, free) in free {
            let subnet = self.subnets.entry(id).or_default();
            // answers may overtake one another
            if subnet.asked <= asked {
                (subnet.free, subnet.asked) = (free, asked);
                subnet.launches.retain(|_, launch| launch.settled.is_none_or(|settled| settled > asked));
            }
        }
    }

    /// Subtracts what a launch may take in each of these subnets. One that is asked for again under its token counts once.
    pub fn take(&mut self, token: &str, wanted: impl IntoIterator<Item = (String, u32)>) {
        for (id, addresses) in wanted {
            if let Some(subnet) = self.subnets.get_mut(&id) {
                subnet.launches.insert(token.to_owned(), Launch { addresses, settled: None });
            }
        }
    }

    /// Gives back what a launch did not take.
    pub fn settle(&mut self, token: &str, outcome: &Outcome) {
        let settled = Some(self.ask());
        for (id, subnet) in &mut self.subnets {
            let Some(launch) = subnet.launches.get_mut(token) else { continue };
            launch.settled = settled;
            if let Outcome::Took(taken) = outcome {
                match taken.get(id) {
                    Some(addresses) => launch.addresses = *addresses,
                    None => _ = subnet.launches.remove(token),
                }
            }
        }
    }

    /// Returns how many addresses a subnet has left; nothing when it was never described.
    #[must_use]
    pub fn left(&self, id: &str) -> Option<u32> {
        let subnet = self.subnets.get(id)?;
        let taken = subnet.launches.values().fold(0_u32, |sum, launch| sum.saturating_add(launch.addresses));
        Some(subnet.free.saturating_sub(taken))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBNETS: [&str; 2] = ["s-1", "s-2"];

    fn described(free: [u32; 2]) -> Addresses {
        let mut addresses = Addresses::default();
        let asked = addresses.ask();
        addresses.describe(asked, SUBNETS.map(str::to_owned).into_iter().zip(free));
        addresses
    }

    fn both(addresses: u32) -> BTreeMap<String, u32> {
        SUBNETS.map(|id| (id.to_owned(), addresses)).into()
    }

    fn left(addresses: &Addresses) -> [u32; 2] {
        SUBNETS.map(|id| addresses.left(id).expect("it was described"))
    }

    #[test]
    fn a_launch_takes_where_it_went_and_gives_back_the_rest() {
        let mut addresses = described([100, 90]);
        addresses.take("t-1", both(29));
        assert_eq!(left(&addresses), [71, 61], "it may go to either");
        addresses.take("t-1", both(29));
        assert_eq!(left(&addresses), [71, 61], "asked for again under its token");
        addresses.settle("t-1", &Outcome::Took(BTreeMap::from([("s-1".to_owned(), 58)])));
        assert_eq!(left(&addresses), [42, 90]);
        addresses.take("t-2", both(500));
        assert_eq!(left(&addresses), [0, 0]);
        addresses.settle("t-2", &Outcome::Took(BTreeMap::new()));
        assert_eq!(left(&addresses), [42, 90], "it failed");
        addresses.take("t-3", both(10));
        addresses.settle("t-3", &Outcome::InDoubt);
        assert_eq!(left(&addresses), [32, 80]);
        let asked = addresses.ask();
        addresses.describe(asked, both(40));
        assert_eq!(left(&addresses), [40, 40], "EC2 has seen all of them");
        assert_eq!(addresses.left("s-3"), None);
    }

    #[test]
    fn a_description_forgets_only_what_was_answered_before_it_was_asked_for() {
        let mut addresses = described([100, 100]);
        addresses.take("before", both(1));
        addresses.settle("before", &Outcome::InDoubt);
        addresses.take("meanwhile", both(10));
        let asked = addresses.ask();
        addresses.settle("meanwhile", &Outcome::InDoubt);
        addresses.take("running", both(5));
        addresses.describe(asked, both(99));
        assert_eq!(left(&addresses), [84, 84]);
        addresses.describe(Mark::default(), both(100));
        assert_eq!(left(&addresses), [84, 84], "an older answer that comes late");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A launch is asked for.
        Launch(u32),
        /// EC2 carries one out, in a subnet, or refuses it.
        Answer {
            which: usize,
            subnet: Option<usize>,
            is_lost: bool,
        },
        Ask,
        Read,
        Describe,
    }

    fn step() -> impl Strategy<Value = Step> {
        let answer = (any::<usize>(), prop::option::weighted(0.8, 0..SUBNETS.len()), prop::bool::weighted(0.2));
        prop_oneof![
            (1_u32..40).prop_map(Step::Launch),
            answer.prop_map(|(which, subnet, is_lost)| Step::Answer { which, subnet, is_lost }),
            Just(Step::Ask),
            Just(Step::Read),
            Just(Step::Describe),
        ]
    }

    proptest! {
        /// EC2 beside it, of which only descriptions and answers are seen. Whatever their order, no address is given out twice, and none is
        /// missing once all is quiet and described.
        #[test]
        fn no_address_is_given_out_twice_and_none_is_lost(
            free in [0_u32..500, 0_u32..500],
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut addresses = described(free);
            let mut there = free;
            let mut running: Vec<(String, u32)> = Vec::new();
            let (mut asked, mut seen, mut certain) = (None, None, true);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Launch(wanted) => {
                        let token = format!("t-{number}");
                        addresses.take(&token, both(wanted));
                        running.push((token, wanted));
                    }
                    Step::Answer { .. } if running.is_empty() => {}
                    Step::Answer { which, subnet, is_lost } => {
                        let (token, wanted) = running.swap_remove(which % running.len());
                        // EC2 takes what it has, or nothing
                        let taken = subnet.filter(|at| there[*at] >= wanted);
                        if let Some(at) = taken {
                            there[at] -= wanted;
                        }
                        let took = taken.map(|at| (SUBNETS[at].to_owned(), wanted)).into_iter().collect();
                        certain &= !is_lost;
                        addresses.settle(&token, &if is_lost { Outcome::InDoubt } else { Outcome::Took(took) });
                    }
                    Step::Ask => (asked, seen) = (Some(addresses.ask()), None),
                    Step::Read => seen = asked.map(|asked| (asked, there)),
                    Step::Describe => {
                        if let Some((asked, free)) = seen.take() {
                            addresses.describe(asked, SUBNETS.map(str::to_owned).into_iter().zip(free));
                            certain = false;
                        }
                    }
                }
                for (left, there) in left(&addresses).into_iter().zip(there) {
                    prop_assert!(left <= there, "{left} are believed free of {there}");
                }
            }
            for (token, _) in running {
                addresses.settle(&token, &Outcome::Took(BTreeMap::new()));
            }
            prop_assert!(!certain || left(&addresses) == there, "what is not taken is given back");
            let asked = addresses.ask();
            addresses.describe(asked, SUBNETS.map(str::to_owned).into_iter().zip(there));
            prop_assert_eq!(left(&addresses), there);
        }
    }
}
