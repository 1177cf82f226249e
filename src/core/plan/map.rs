//! Which CPUs the shards are on, and with whom: for people to look at.

use std::collections::BTreeSet;

use crate::model::cpus::CpuSet;
use crate::model::host::Host;
use crate::model::ids::{GroupName, ShardId};
use crate::model::plan::{CpuMap, CpuRow, ShardPlan};

/// Draws the map of `shards` on this host.
pub(super) fn draw(host: &Host, shards: &[ShardPlan], reasons: Vec<(GroupName, String)>) -> CpuMap {
    let workers = host.nginx.as_ref().map_or(&[][..], |layout| &layout.workers);
    let pinned: Vec<(u32, &CpuSet)> = (0..).zip(workers).filter_map(|(number, set)| Some((number, set.as_ref()?))).collect();
    let shown: BTreeSet<u32> = host.topology.usable.iter().chain(pinned.iter().flat_map(|(_, set)| set.iter())).collect();
    let row = |number: u32| {
        let cpu = host.topology.cpu(number);
        let on = |shard: &&ShardPlan| shard.cpus.as_ref().is_some_and(|set| set.contains(number));
        CpuRow {
            cpu: number,
            node: cpu.node,
            cache: cpu.cache,
            core: cpu.core,
            usable: host.topology.usable.contains(number),
            nginx_workers: pinned.iter().filter(|(_, set)| set.contains(number)).map(|(worker, _)| *worker).collect(),
            shards: shards.iter().filter(on).map(|shard| shard.id.clone()).collect::<Vec<ShardId>>(),
        }
    };
    let unpinned = workers.iter().filter(|set| set.is_none()).count();
    CpuMap { cpus: shown.into_iter().map(row).collect(), unpinned_nginx_workers: u32::try_from(unpinned).unwrap_or(u32::MAX), reasons }
}
