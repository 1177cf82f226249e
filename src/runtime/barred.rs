//! Pools whose listeners cannot be had: somebody else is there, or the directory is not fit.
//!
//! Such a pool hurts only itself (design, rule 3): it is kept out by name, the others of its shard start without it, and
//! it is tried again when its path is free, or at the operator's next reload.

use std::collections::BTreeMap;

use super::calls::Pending;
use super::launch::LaunchError;
use super::supervisor::Supervisor;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName};
use crate::model::listen::PathState;
use crate::model::pool::Quarantined;
use crate::model::problem::Problem;
use crate::sys::listener;

/// The pools, each with where it listens and what is in the way.
#[derive(Debug, Default)]
pub(super) struct Barred(BTreeMap<PoolName, (Endpoint, Quarantined)>);

impl Barred {
    /// Gives every pool with its reason.
    pub(super) fn all(&self) -> Vec<Quarantined> {
        self.0.values().map(|(_, bad)| bad.clone()).collect()
    }

    /// Forgets all: each will be tried again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets those whose place is free now; tells whether there were any.
    fn free(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|_, (endpoint, _)| !is_free(endpoint));
        self.0.len() < before
    }
}

impl Supervisor {
    /// Keeps a pool out whose listener stopped the start of a shard that nobody serves.
    pub(super) fn bar_pool_of(&mut self, id: &MasterId, error: &LaunchError) {
        let LaunchError::Socket(error) = error else { return };
        let serves = self.fleet.shard(&id.shard).is_some_and(|shard| shard.serving().is_some());
        let placements = self.draft.plan.shard(&id.shard).map(|shard| shard.placements.as_slice()).unwrap_or_default();
        let Some(placement) = placements.iter().find(|placement| error.pool() == Some(placement.pool.as_str())) else { return };
        if serves {
            return;
        }
        let remedy = "end who listens there, or give the pool another listen; it is tried again when the place is free";
        let mut problem = Problem::error(super::chain(error)).remedy(remedy);
        if let Some(pool) = self.draft.files.pools.iter().find(|pool| pool.name == placement.pool) {
            let origin = pool.listen_origin.as_ref().unwrap_or(&pool.origin);
            problem = problem.at(origin.file.as_path(), origin.line);
        }
        let (pool, endpoint) = (placement.pool.clone(), placement.listener.endpoint.clone());
        tracing::error!(pool = %pool, problem = %problem, "pool kept out");
        self.barred.0.insert(pool.clone(), (endpoint, Quarantined { pool, problem }));
        self.pending = self.pending.and(Pending::Reload);
    }

    /// Tries pools again whose place has become free.
    pub(super) fn look_at_barred(&mut self) {
        if self.barred.free() {
            self.pending = self.pending.and(Pending::Reload);
        }
    }
}

fn is_free(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Unix(path) => matches!(listener::examine(path), Ok(PathState::Absent | PathState::Stale)),
        Endpoint::Tcp(address) => std::net::TcpListener::bind(address).is_ok(),
    }
}
