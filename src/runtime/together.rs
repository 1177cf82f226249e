//! Which shards are handed over together: those that share a listener and have a warm-up (`core::fleet`, "Shards whose turns
//! are one turn").
//!
//! On a shared unix listener a new master accepts as soon as it runs. Where a pool has a warm-up, somebody relies on new
//! code being tried first, so all shards of such a pool come in on a new listener. That takes the memory of all their masters
//! twice, for the time of a warm-up and of the longest requests. Where it is not there, they are rolled one by one.

use std::collections::{BTreeMap, BTreeSet};

use super::supervisor::Supervisor;
use crate::core::fleet::{JobKind, JobOrder};
use crate::core::shard::Shard;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{GroupName, MasterId, ShardId};
use crate::model::listen::Handover;
use crate::model::plan::{PoolPlan, Routing};
use crate::sys::proc::Proc;

/// What must be free for each byte the present masters have: new ones are smaller at first, and others want memory, too.
const FREE_PER_USED_PERCENT: u64 = 125;

impl Supervisor {
    /// Gives the sets of shards that a job shall hand over together.
    pub(super) fn together(&self, order: &JobOrder) -> Vec<BTreeSet<ShardId>> {
        if !matches!(order.kind, JobKind::Restart | JobKind::Apply) {
            return Vec::new();
        }
        let sets = self.sharing().into_iter().filter(|(_, set)| set.iter().any(|id| order.shards.contains(id)));
        sets.filter(|(group, set)| self.has_room_twice(group, set)).map(|(_, set)| set).collect()
    }

    /// Gives the shards of each group that accept on common listeners, where one of their pools has a warm-up.
    fn sharing(&self) -> BTreeMap<GroupName, BTreeSet<ShardId>> {
        let warms = |pool: &PoolPlan| self.settings.restart.warmup.iter().any(|warmup| warmup.pool == pool.pool.as_str());
        let on_unix = |pool: &PoolPlan| pool.servers.iter().any(|server| matches!(server.endpoint, Endpoint::Unix(_)));
        let groups: BTreeSet<&GroupName> = self
            .draft
            .plan
            .pools
            .iter()
            .filter(|pool| pool.routing == Routing::Shared && on_unix(pool) && warms(pool))
            .map(|pool| &pool.group)
            .collect();
        // A rename does not reach a socket file that is mounted elsewhere: such a listener must stay.
        let mounted = |group: &GroupName| self.draft.plan.pools.iter().any(|pool| pool.group == *group && pool.mounted_as.is_some());
        groups.into_iter().filter(|group| !mounted(group)).map(|group| (group.clone(), self.sharing_in(group))).collect()
    }

    fn sharing_in(&self, group: &GroupName) -> BTreeSet<ShardId> {
        let planned = self.draft.plan.shards.iter().filter(|shard| shard.id.group == *group);
        let planned = planned.filter(|shard| shard.placements.iter().any(|place| place.listener.handover == Handover::Share));
        let held = self.held.iter().filter(|(id, set)| id.group == *group && set.iter().any(|held| held.plan.handover == Handover::Share));
        planned.map(|shard| shard.id.clone()).chain(held.map(|(id, _)| id.clone())).collect()
    }

    fn has_room_twice(&self, group: &GroupName, set: &BTreeSet<ShardId>) -> bool {
        let proc = Proc::default();
        let Ok(available) = proc.memory_available() else { return false };
        let used: u64 = set.iter().map(|id| self.memory_of(&proc, id)).sum();
        let enough = available >= used.saturating_mul(FREE_PER_USED_PERCENT) / 100;
        if !enough {
            let (used_mb, available_mb) = (used >> 20, available >> 20);
            tracing::warn!(%group, used_mb, available_mb, "memory does not hold all masters twice: new ones accept before their warm-up");
        }
        enough
    }

    /// Gives what the master of a shard and its workers have in RAM; what they share counts once.
    fn memory_of(&self, proc: &Proc, id: &ShardId) -> u64 {
        let serving = self.fleet.shard(id).and_then(Shard::serving);
        let master = serving.and_then(|(generation, _)| self.masters.get(&MasterId::new(id, generation)));
        let Some(pid) = master.and_then(|master| master.pid) else { return 0 };
        let all = proc.memory_resident(pid).map_or(0, |(resident, _)| resident);
        let own = |worker| proc.memory_resident(worker).map_or(0, |(resident, shared)| resident.saturating_sub(shared));
        all + proc.children_of(pid).unwrap_or_default().into_iter().map(own).sum::<u64>()
    }
}
