//! Cutting CPUs into shards along the lines that the machine has.
//!
//! A shard that straddles a NUMA node or a cache pays for each line that its workers share, so the machine is cut level by
//! level: nodes first, then what shares the last level of cache, then cores, then the CPUs of a core. While there are more
//! shards than parts of a level, each part gets shards by its capacity, at least one; when there are fewer, neighbours are
//! put together. Nothing is cut that need not be.

use std::collections::BTreeMap;

use crate::model::cpus::CpuSet;
use crate::model::topology::{Cpu, Topology};

/// CPUs that stay together: those of one NGINX worker, or a single one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) cpus: CpuSet,
    place: Cpu,
    capacity: u64,
}

impl Unit {
    /// Makes a unit; it stands where its lowest CPU stands.
    pub(super) fn new(cpus: CpuSet, topology: &Topology) -> Self {
        let place = topology.cpu(cpus.iter().next().unwrap_or(0));
        let capacity = cpus.iter().map(|cpu| u64::from(topology.cpu(cpu).capacity)).sum();
        Self { cpus, place, capacity }
    }
}

/// What is kept together, from the outside in.
const LEVELS: [fn(Cpu) -> u32; 3] = [|cpu| cpu.node, |cpu| cpu.cache, |cpu| cpu.core];

/// Cuts `units` into `parts`, at most as many as there are units, none empty. In the order of the lowest CPUs.
pub(super) fn partition(units: Vec<Unit>, parts: usize, topology: &Topology) -> Vec<CpuSet> {
    let parts = parts.clamp(1, units.len().max(1));
    let mut sets: Vec<CpuSet> = cut(units, parts, &LEVELS)
        .into_iter()
        .map(|part| part.into_iter().flat_map(|unit| unit.cpus.iter().collect::<Vec<_>>()).collect())
        .collect();
    sets.retain(|set: &CpuSet| !set.is_empty());
    // Neighbours in number are neighbours on the machine on most, and people look for shard 1 at CPU 0.
    sets.sort_by_key(|set| (topology.cpu(set.iter().next().unwrap_or(0)).node, set.iter().next()));
    sets
}

fn cut(units: Vec<Unit>, parts: usize, levels: &[fn(Cpu) -> u32]) -> Vec<Vec<Unit>> {
    if parts <= 1 {
        return vec![units];
    }
    let Some((level, inner)) = levels.split_first() else {
        return gather(units.into_iter().map(|unit| vec![unit]).collect(), parts);
    };
    let mut groups: BTreeMap<u32, Vec<Unit>> = BTreeMap::new();
    for unit in units {
        groups.entry(level(unit.place)).or_default().push(unit);
    }
    let groups: Vec<Vec<Unit>> = groups.into_values().collect();
    if groups.len() > parts {
        return gather(groups, parts);
    }
    let shares = apportion(&groups, parts);
    groups.into_iter().zip(shares).flat_map(|(group, share)| cut(group, share, inner)).collect()
}

/// Puts neighbours together until there are `parts`, each as near as can be to its part of the capacity.
fn gather(groups: Vec<Vec<Unit>>, parts: usize) -> Vec<Vec<Unit>> {
    let total: u64 = groups.iter().map(|group| capacity(group)).sum();
    let (mut gathered, mut before, mut left) = (vec![Vec::new()], 0, groups.len());
    for group in groups {
        let own = capacity(&group);
        let made = gathered.len();
        // Where the middle of the group lies tells to which part it belongs; each later part needs a group of its own.
        let due = (before * 2 + own) * u64::try_from(parts).unwrap_or(1) > total.saturating_mul(2) * u64::try_from(made).unwrap_or(1);
        let empty = gathered.last().is_none_or(Vec::is_empty);
        if !empty && made < parts && (due || left <= parts - made) {
            gathered.push(Vec::new());
        }
        if let Some(last) = gathered.last_mut() {
            last.extend(group);
        }
        before += own;
        left -= 1;
    }
    gathered
}

/// Deals `parts` to groups by capacity: at least one each, at most one for each of its units.
fn apportion(groups: &[Vec<Unit>], parts: usize) -> Vec<usize> {
    let mut shares = vec![1; groups.len()];
    for _ in groups.len()..parts {
        // The group whose parts are the largest gets the next one.
        let open = groups.iter().zip(&shares).enumerate().filter(|(_, (group, share))| **share < group.len());
        let neediest = open.max_by_key(|(at, (group, share))| {
            let of_each = capacity(group) * 1000 / u64::try_from(**share).unwrap_or(u64::MAX);
            (of_each, std::cmp::Reverse(*at))
        });
        let neediest = neediest.map(|(at, _)| at);
        let Some(share) = neediest.and_then(|at| shares.get_mut(at)) else { break };
        *share += 1;
    }
    shares
}

fn capacity(units: &[Unit]) -> u64 {
    units.iter().map(|unit| unit.capacity).sum()
}
