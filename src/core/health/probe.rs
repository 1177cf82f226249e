//! Which pools to ask for their status.
//!
//! The status socket of a pool is a small on-demand pool of its own: asking costs a worker process of that pool's user for as
//! long as it is used (P31), so asking every pool of a host with 1,000 of them would fork 1,000 workers (P32). Asked is only
//! where something happens: first pools whose kernel queue is not empty, then pools that were seen at work; of pools that
//! keep workers anyway (static, dynamic) also those of a master whose heartbeat moved, or that has no heartbeat. At most
//! a given number an interval, in turn. Only the brief page is asked for: the full one could crash 8.2.24 (P31).

use super::ShardHealth;
use crate::model::ids::PoolName;
use crate::model::pool::ProcessManager;

/// Eight workers at most are woken an interval by each shard; a queue that matters stays for more than one interval.
pub const PROBES_PER_INTERVAL: usize = 8;

impl ShardHealth {
    /// Gives the pools to ask before the next look, at most `most` of them, the urgent ones first, the others in turn.
    pub fn probe_plan(&mut self, most: usize) -> Vec<PoolName> {
        let master_works =
            self.beats.last.is_none() || self.beats.moved_at.is_some_and(|at| self.beats.last.is_some_and(|beat| beat.at == at));
        let (mut urgent, mut others) = (Vec::new(), Vec::new());
        for (pool, track) in self.in_turn() {
            if track.waits() {
                urgent.push(pool.clone());
            } else if track.works() || (master_works && track.pm() != ProcessManager::Ondemand) {
                others.push(pool.clone());
            }
        }
        urgent.append(&mut others);
        urgent.truncate(most);
        if let Some(last) = urgent.last() {
            self.asked_last = Some(last.clone());
        }
        urgent
    }

    /// Gives all pools, beginning after the one that was asked last.
    fn in_turn(&self) -> impl Iterator<Item = (&PoolName, &super::PoolTrack)> {
        let is_after = |pool: &PoolName| self.asked_last.as_ref().is_none_or(|last| pool > last);
        let after = self.pools.iter().filter(move |(pool, _)| is_after(pool));
        let before = self.pools.iter().filter(move |(pool, _)| !is_after(pool));
        after.chain(before)
    }
}
