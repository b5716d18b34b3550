//! The built-in table of instance types, derived by `sandbox/tools/catalogue/derive.py`.

use std::sync::OnceLock;

use super::{Accelerator, Arch, Gpu, InstanceFacts};

const TABLE: &str = include_str!("builtin.tsv");
const COLUMNS: usize = 34;

/// Answers the built-in facts of every known type, ordered by name; parsed once.
pub fn builtin() -> &'static [InstanceFacts] {
    static FACTS: OnceLock<Vec<InstanceFacts>> = OnceLock::new();
    FACTS.get_or_init(|| TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(parse).collect())
}

/// Answers the built-in facts of one type.
pub fn builtin_type(name: &str) -> Option<&'static InstanceFacts> {
    let all = builtin();
    all.binary_search_by(|facts| facts.name.as_str().cmp(name)).ok().map(|at| &all[at])
}

fn parse(line: &str) -> Option<InstanceFacts> {
    let cells: Vec<&str> = line.split('\t').collect();
    if cells.len() != COLUMNS {
        return None;
    }
    let number = |at: usize| cells[at].parse::<u64>().ok();
    let small = |at: usize| cells[at].parse::<u32>().ok();
    let flag = |at: usize| cells[at] == "1";
    let gpus = small(8)?;
    let accelerators = small(12)?;
    Some(InstanceFacts {
        name: cells[0].to_owned(),
        arch: if cells[1] == "arm64" { Arch::Arm64 } else { Arch::Amd64 },
        vcpus: small(2)?,
        memory_mib: number(3)?,
        enis: small(4)?,
        ipv4_per_eni: small(5)?,
        network_cards: small(6)?,
        efa: small(7)?,
        gpu: (gpus > 0).then_some(Gpu {
            name: cells[9].to_owned(),
            maker: cells[10].to_owned(),
            count: gpus,
            memory_mib: number(11)?,
        }),
        accelerator: (accelerators > 0).then_some(Accelerator {
            name: cells[13].to_owned(),
            maker: cells[14].to_owned(),
            count: accelerators,
            neuron_cores: small(15)?,
        }),
        nvme_gb: number(16)?,
        hypervisor: cells[17].to_owned(),
        bare_metal: flag(18),
        clock_mhz: small(19)?,
        maker: cells[20].to_owned(),
        ebs_mbps: small(21)?,
        network_mbps: small(22)?,
        encryption_in_transit: flag(23),
        on_demand: flag(24),
        spot: flag(25),
        branch_enis: small(26)?,
        further_enis: small(27)?,
        efa_cards: ranges(cells[33]),
        enclaves: flag(28),
        nested_vms: flag(29),
        ebs_attachments: small(30)?,
        attachments_shared: flag(31),
        cluster_groups: flag(32),
    })
}

/// Reads numbers that are written as `0-3,7`; there are none in a dash.
fn ranges(cell: &str) -> Vec<u32> {
    let ends = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    cell.split(',').filter_map(ends).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_their_ranges() {
        assert_eq!(ranges("0-3,7"), [0, 1, 2, 3, 7]);
        assert_eq!((ranges("5"), ranges("-")), (vec![5], vec![]));
        let enough = |facts: &InstanceFacts| facts.efa_cards.len() >= facts.efa as usize;
        assert!(builtin().iter().all(enough), "each EFA interface has a card of its own");
    }

    #[test]
    fn every_row_of_the_table_is_read() {
        let rows = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(builtin().len(), rows);
        assert!(rows > 1000);
        assert!(builtin().windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn names_split_into_parts() {
        let part = |name: &str| {
            let parts = builtin_type(name).unwrap().name_parts();
            format!("{} {} {} {}", parts.category, parts.generation, parts.family, parts.size)
        };
        assert_eq!(part("m5.large"), "m 5 m5 large");
        assert_eq!(part("g4dn.xlarge"), "g 4 g4dn xlarge");
        assert_eq!(part("u-6tb1.56xlarge"), "u 1 u-6tb1 56xlarge");
        assert_eq!(part("trn1.32xlarge"), "trn 1 trn1 32xlarge");
    }
}
