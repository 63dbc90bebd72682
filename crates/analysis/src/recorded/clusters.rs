//! Clusters of similar CPUs, from the topology in a trace's header.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

/// CPUs of equal capacity: one cluster of a board with unequal cores, or all CPUs of a machine with equal ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    pub cpus: Vec<u32>,
    /// As scaled by the kernel, 1024 for the largest core; null if it does not say.
    pub capacity: Option<u64>,
    /// Maximum frequency of the fastest of them, kHz; null if the kernel does not say.
    pub max_khz: Option<u64>,
}

/// The clusters in a header's topology (`pfi::record::Header`), largest cores first. Malformed entries are
/// skipped.
pub fn clusters(topology: &str) -> Vec<Cluster> {
    let mut found: BTreeMap<Reverse<u64>, Cluster> = BTreeMap::new();
    for cpu in topology.split(';').filter_map(numbers) {
        let [cpu, _core, _cluster, khz, capacity] = cpu;
        let known = |n: u64| (n > 0).then_some(n);
        let empty = || Cluster { cpus: Vec::new(), capacity: known(capacity), max_khz: None };
        let cluster = found.entry(Reverse(capacity)).or_insert_with(empty);
        cluster.cpus.push(cpu as u32);
        cluster.max_khz = cluster.max_khz.max(known(khz));
    }
    found.into_values().collect()
}

fn numbers(cpu: &str) -> Option<[u64; 5]> {
    let all: Vec<u64> = cpu.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    all.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_one_capacity_are_a_cluster() {
        let little = Cluster { cpus: vec![0, 1], capacity: Some(276), max_khz: Some(1_800_000) };
        let big = Cluster { cpus: vec![2], capacity: Some(1024), max_khz: Some(2_900_000) };
        assert_eq!(clusters("0,0,0,1800000,276;1,1,0,1700000,276;2,0,1,2900000,1024"), [big, little]);
    }

    #[test]
    fn what_the_machine_does_not_say_is_not_known() {
        let all = Cluster { cpus: vec![0, 1], capacity: None, max_khz: None };
        assert_eq!(clusters("0,0,0,0,0;1,1,0,0,0"), [all]);
        assert!(clusters("").is_empty() && clusters("0,1;x,0,0,0,0").is_empty());
    }
}
