//! The CPUs of this machine and what they have in common.

use std::collections::BTreeMap;

use super::cpus::CpuSet;

/// The capacity of a CPU of the fastest kind, the kernel's unit.
pub const FULL_CAPACITY: u32 = 1024;

/// One CPU that is online.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The lowest CPU of its core: SMT siblings have the same.
    pub core: u32,
    /// The lowest CPU of those that share its last level of cache.
    pub cache: u32,
    /// Its NUMA node.
    pub node: u32,
    /// What it can do, out of [`FULL_CAPACITY`].
    pub capacity: u32,
    /// Whether the kernel keeps ordinary work away from it (`isolcpus`).
    pub isolated: bool,
}

/// The CPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Every CPU that is online.
    pub online: BTreeMap<u32, Cpu>,
    /// Those that we may use: affinity and cpuset allow them.
    pub usable: CpuSet,
    /// CPU time we may use, in thousandths of a CPU; `None` where nothing limits it.
    pub quota_milli: Option<u32>,
}

impl Topology {
    /// Gives a machine with these CPUs and nothing known of them: one cache, one node, no siblings.
    pub fn flat(usable: CpuSet) -> Self {
        let cpu = |number| Cpu { core: number, cache: 0, node: 0, capacity: FULL_CAPACITY, isolated: false };
        Self { online: usable.iter().map(|number| (number, cpu(number))).collect(), usable, quota_milli: None }
    }

    /// Gives the CPUs that are online.
    pub fn online_set(&self) -> CpuSet {
        self.online.keys().copied().collect()
    }

    /// Gives the usable CPUs on which the kernel runs ordinary work; all usable ones where it does so on none.
    pub fn ordinary(&self) -> CpuSet {
        let ordinary: CpuSet = self.usable.iter().filter(|number| self.online.get(number).is_none_or(|cpu| !cpu.isolated)).collect();
        if ordinary.is_empty() { self.usable.clone() } else { ordinary }
    }

    /// Gives what a CPU has in common with others; of an unknown CPU nothing is known.
    pub fn cpu(&self, number: u32) -> Cpu {
        let unknown = Cpu { core: number, cache: 0, node: 0, capacity: FULL_CAPACITY, isolated: false };
        self.online.get(&number).copied().unwrap_or(unknown)
    }

    /// Gives how many different values CPUs of `set` have.
    pub fn count_of(&self, set: &CpuSet, what: impl Fn(Cpu) -> u32) -> usize {
        set.iter().map(|number| what(self.cpu(number))).collect::<std::collections::BTreeSet<u32>>().len()
    }
}

/// Where the CPUs of NGINX's workers are known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayoutSource {
    /// From the workers that run.
    Life,
    /// From the configuration: NGINX does not run, or may not be looked at.
    File,
}

/// NGINX's workers and their CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NginxLayout {
    /// The CPUs of each worker, in the order of their numbers; `None`: it may run anywhere.
    pub workers: Vec<Option<CpuSet>>,
    /// Where that is known from.
    pub source: LayoutSource,
}

impl NginxLayout {
    /// Tells whether every worker has CPUs of its own.
    pub fn is_pinned(&self) -> bool {
        !self.workers.is_empty() && self.workers.iter().all(Option::is_some)
    }
}
