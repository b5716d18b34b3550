//! Estimates of prices that nobody told: neither the Pricing API, nor the spot history, nor a file. `docs/prices.md` explains the rule.
//!
//! EC2's list prices follow the hardware closely: a rate for each vCPU and each GiB of the category, a factor for the processor and its
//! generation, a surcharge for what a suffix adds (network, disks, clock), and a rate for each accelerator. The rates here are rounded
//! general figures for us-east-1, in micro-dollars an hour; no price list is kept.

use super::{Arch, InstanceFacts, Price};

/// What a burstable type costs for a GiB, by generation.
const BURSTABLE_GIB: [(&str, u64); 4] = [("1", 32_600), ("2", 11_600), ("3", 10_400), ("4", 8_400)];
/// The same for AMD's and for generations to come.
const BURSTABLE_GIB_AMD: u64 = 9_400;
const BURSTABLE_GIB_LATER: u64 = 11_000;
/// A GiB beside many vCPUs (category c), and in all other categories.
const COMPUTE_RATES: (u64, u64) = (31_500, 5_500);
const OTHER_RATES: (u64, u64) = (33_000, 3_750);
/// A GB of a local disk where disks are what the type is for, and as an addition to other types by category.
const DENSE_DISK_GB: u64 = 90;
const DISK_GB: [(&str, u64); 2] = [("c", 145), ("r", 235)];
const DISK_GB_ELSE: u64 = 205;
/// The network of an `n` or `b` type up to the fifth generation, for a vCPU.
const FAST_NETWORK_VCPU: u64 = 11_500;

/// An accelerator, in addition to the host that carries it.
const DEVICES: &[(&str, u64)] = &[
    ("t4", 400_000),
    ("t4g", 320_000),
    ("a10g", 870_000),
    ("l4", 520_000),
    ("l40s", 2_130_000),
    ("rtx-pro-4500", 2_400_000),
    ("rtx-pro-server-6000", 2_600_000),
    ("v100", 3_150_000),
    ("a100", 2_150_000),
    ("h100", 5_300_000),
    ("h200", 6_200_000),
    ("b200", 12_500_000),
    ("b300", 15_000_000),
    ("inferentia", 50_000),
    ("inferentia2", 370_000),
    ("trainium", 960_000),
    ("u30", 160_000),
];
/// A GPU and another accelerator that is not in the list.
const GPU_ELSE: u64 = 5_000_000;
const ACCELERATOR_ELSE: u64 = 600_000;

/// Estimates the on-demand price of a type in us-east-1 from its hardware and its name.
pub fn estimate_on_demand(facts: &InstanceFacts) -> Price {
    Price::from_micro_dollars(if facts.name_parts().category == "t" {
        gib(facts, burstable_gib(facts))
    } else if let Some(devices) = devices(facts) {
        let host = permille(host(facts), if facts.arch == Arch::Arm64 { 800 } else { 1000 });
        host + devices
    } else {
        let body = permille(host(facts), generation(facts));
        surcharged(facts, body) + disks(facts)
    })
}

/// Estimates the spot price of a type in a zone: 0.35 of on-demand, times 1.00, 1.02 or 0.98 in zones a, b and c, so that equal zones
/// have an order. Real discounts run from nothing to 0.9 and follow demand; no rule tells them.
pub fn estimate_spot(on_demand: Price, zone: &str) -> Price {
    let factor = match zone.as_bytes().last() {
        Some(b'b') => 102,
        Some(b'c') => 98,
        _ => 100,
    };
    on_demand.scaled(35 * factor, 100 * 100)
}

const fn permille(amount: u64, factor: u64) -> u64 {
    amount * factor / 1000
}

fn gib(facts: &InstanceFacts, rate: u64) -> u64 {
    facts.memory_mib * rate / 1024
}

fn listed(list: &[(&str, u64)], name: &str) -> Option<u64> {
    list.iter().find(|(known, _)| *known == name).map(|(_, rate)| *rate)
}

fn burstable_gib(facts: &InstanceFacts) -> u64 {
    let by_generation = || listed(&BURSTABLE_GIB, facts.name_parts().generation).unwrap_or(BURSTABLE_GIB_LATER);
    if facts.maker == "amd" { BURSTABLE_GIB_AMD } else { by_generation() }
}

/// vCPUs and memory at the rates of the category on the fifth generation of Intel's processors.
fn host(facts: &InstanceFacts) -> u64 {
    let (vcpu, memory) = if facts.name_parts().category == "c" { COMPUTE_RATES } else { OTHER_RATES };
    u64::from(facts.vcpus) * vcpu + gib(facts, memory)
}

fn devices(facts: &InstanceFacts) -> Option<u64> {
    let gpu = facts.gpu.as_ref().map(|gpu| (gpu.name.as_str(), gpu.count, GPU_ELSE));
    let other = || facts.accelerator.as_ref().map(|device| (device.name.as_str(), device.count, ACCELERATOR_ELSE));
    let (name, count, rate) = gpu.or_else(other)?;
    Some(u64::from(count) * listed(DEVICES, name).unwrap_or(rate))
}

/// The categories whose generations are priced alike; the others number theirs on their own.
fn is_mainstream(facts: &InstanceFacts) -> bool {
    matches!(facts.name_parts().category, "c" | "m" | "r")
}

fn number(facts: &InstanceFacts) -> u32 {
    facts.name_parts().generation.parse().unwrap_or(u32::MAX)
}

/// What the processor makes of the host's price, in thousandths of the fifth generation of Intel's.
fn generation(facts: &InstanceFacts) -> u64 {
    let mainstream = is_mainstream(facts);
    match (facts.arch, facts.maker.as_str(), number(facts)) {
        (Arch::Arm64, _, 7) if mainstream => 850,
        (Arch::Arm64, _, 8) => 938,
        (Arch::Arm64, _, 9..) => 1022,
        (Arch::Arm64, ..) => 800,
        (_, "amd", 7) if mainstream => 1208,
        (_, "amd", 8..) => 1268,
        (_, "amd", _) => 900,
        _ if facts.name_parts().category == "u" => 1400,
        _ if !mainstream => 1000,
        (_, _, 1) => 1830,
        (_, _, 2) => 1300,
        (_, _, 3) => 1350,
        (_, _, 4) => 1050,
        (_, _, 5 | 6) => 1000,
        (_, _, 7) => 1050,
        (_, _, 8) => 1103,
        _ => 1150,
    }
}

/// Adds what the family's suffix promises: `flex` less of the processor; `z` a faster one; `n` and `b` more bandwidth; `ne` most.
fn surcharged(facts: &InstanceFacts, body: u64) -> u64 {
    let parts = facts.name_parts();
    let suffix = parts.family.trim_start_matches(parts.category).trim_start_matches(parts.generation);
    let letters = suffix.split('-').next().unwrap_or_default();
    let has = |letter: char| letters.contains(letter);
    let body = if suffix.ends_with("-flex") { permille(body, 950) } else { body };
    let fast_network = is_mainstream(facts) && (has('n') || has('b'));
    match (fast_network, has('z'), number(facts)) {
        (true, true, _) => permille(body, 1720),
        (false, true, _) => permille(body, 1400),
        (false, false, _) => body,
        (true, false, ..=5) => body + u64::from(facts.vcpus) * FAST_NETWORK_VCPU,
        (true, false, 6) => permille(body, if facts.arch == Arch::Arm64 { 1280 } else { 1390 }),
        (true, false, 7) => permille(body, 1720),
        (true, false, _) if has('e') => permille(body, 1912),
        (true, false, _) => permille(body, 1530),
    }
}

fn disks(facts: &InstanceFacts) -> u64 {
    let category = facts.name_parts().category;
    let rate = match category {
        "i" | "im" | "is" | "d" | "h" => DENSE_DISK_GB,
        _ => listed(&DISK_GB, category).unwrap_or(DISK_GB_ELSE),
    };
    let halved = is_mainstream(facts) && facts.arch == Arch::Arm64 && number(facts) == 6;
    facts.nvme_gb * rate / if halved { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{builtin, builtin_type};

    #[test]
    fn every_type_has_an_estimate_and_more_of_the_same_costs_more() {
        for facts in builtin() {
            assert!(estimate_on_demand(facts) > Price::ZERO, "{}", facts.name);
        }
        let of = |name: &str| estimate_on_demand(builtin_type(name).unwrap());
        for (less, more) in [
            ("m5.large", "m5.xlarge"),
            ("m7g.large", "m7i.large"),
            ("m7i-flex.large", "m7i.large"),
            ("c6i.large", "c6in.large"),
            ("c6i.large", "c6id.large"),
            ("c7i.large", "m7i.large"),
            ("m7i.large", "r7i.large"),
            ("g5.xlarge", "g5.12xlarge"),
            ("t3a.small", "t3.small"),
        ] {
            assert!(of(less) < of(more), "{less} {} {more} {}", of(less), of(more));
        }
    }

    #[test]
    fn spot_is_cheaper_and_zones_have_an_order() {
        let bought = Price::from_micro_dollars(100_000);
        let spot = |zone: &str| estimate_spot(bought, zone).micro_dollars();
        assert_eq!(
            ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1f"].map(spot),
            [35_000, 35_700, 34_300, 35_000]
        );
    }
}
