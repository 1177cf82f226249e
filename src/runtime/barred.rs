//! Pools whose listeners cannot be had: somebody else is there, or the directory is not fit.
//!
//! Such a pool hurts only itself (design, rule 3): it is kept out by name, the others of its shard start without it, and
//! it is tried again when its path is free, or at the operator's next reload.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::calls::Pending;
use super::launch::LaunchError;
use super::supervisor::Supervisor;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName};
use crate::model::listen::PathState;
use crate::model::pool::Quarantined;
use crate::model::problem::Problem;
use crate::sys::{listener, sock_diag};

/// What to do about a pool whose socket somebody else has.
pub(super) const REMEDY: &str = "take the other php-fpm over with polyfpm takeover, end who listens there, or give the pool another listen; \
                                 the pool is tried again when the place is free";

/// The pools, each with where it listens and what is in the way.
#[derive(Debug, Default)]
pub(super) struct Barred(BTreeMap<PoolName, (Endpoint, Quarantined)>);

impl Barred {
    /// Gives every pool with its reason.
    pub(super) fn all(&self) -> Vec<Quarantined> {
        self.0.values().map(|(_, bad)| bad.clone()).collect()
    }

    /// Gives every pool with where it listens.
    pub(super) fn places(&self) -> Vec<(PoolName, Endpoint)> {
        self.0.iter().map(|(pool, (endpoint, _))| (pool.clone(), endpoint.clone())).collect()
    }

    /// Forgets these pools: their places are to be had.
    pub(super) fn let_in(&mut self, pools: &BTreeSet<PoolName>) {
        self.0.retain(|pool, _| !pools.contains(pool));
    }

    /// Keeps a pool out.
    pub(super) fn keep_out(&mut self, pool: PoolName, endpoint: Endpoint, problem: Problem) {
        self.0.insert(pool.clone(), (endpoint, Quarantined { pool, problem }));
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
    /// Keeps a pool out whose listener stopped the start of a shard that nobody serves. One that another shard serves stays: kept
    /// out, it would lose that shard, too.
    pub(super) fn bar_pool_of(&mut self, id: &MasterId, error: &LaunchError) {
        let LaunchError::Socket(error) = error else { return };
        let serves = self.fleet.shard(&id.shard).is_some_and(|shard| shard.serving().is_some());
        let placements = self.draft.plan.shard(&id.shard).map(|shard| shard.placements.as_slice()).unwrap_or_default();
        let Some(placement) = placements.iter().find(|placement| error.pool() == Some(placement.pool.as_str())) else { return };
        if serves || self.is_served(&placement.pool) {
            return;
        }
        let (pool, endpoint) = (placement.pool.clone(), placement.listener.endpoint.clone());
        self.bar(pool, endpoint, super::chain(error));
        self.bar_others_taken();
        self.pending = self.pending.and(Pending::Reload);
    }

    fn is_served(&self, pool: &PoolName) -> bool {
        let serving = self.fleet.shards().filter_map(|shard| self.masters.get(&MasterId::new(shard.id(), shard.serving()?.0)));
        serving.flat_map(|master| &master.sockets).any(|held| held.plan.pool == *pool)
    }

    fn bar(&mut self, pool: PoolName, endpoint: Endpoint, why: String) {
        let mut problem = Problem::error(why).remedy(REMEDY);
        if let Some(pool) = self.draft.files.pools.iter().find(|known| known.name == pool) {
            let origin = pool.listen_origin.as_ref().unwrap_or(&pool.origin);
            problem = problem.at(origin.file.as_path(), origin.line);
        }
        tracing::error!(pool = %pool, problem = %problem, "pool kept out");
        self.barred.keep_out(pool, endpoint, problem);
    }

    /// Keeps every other pool out, too, at whose place somebody listens or something stands that is no socket: a php-fpm that
    /// runs has all of its pools' sockets, each would cost a start that fails and a reading, and too many halt the shard.
    fn bar_others_taken(&mut self) {
        let down = self.draft.plan.shards.iter().filter(|shard| self.fleet.shard(&shard.id).is_none_or(|shard| shard.serving().is_none()));
        let ours: BTreeSet<Endpoint> = self.sockets.endpoints().into_iter().collect();
        let listeners = down.flat_map(|shard| &shard.placements).map(|placement| &placement.listener);
        let asked: Vec<(PoolName, Endpoint)> = listeners
            .filter(|plan| !ours.contains(&plan.endpoint) && !self.barred.0.contains_key(&plan.pool) && !self.is_served(&plan.pool))
            .map(|plan| (plan.pool.clone(), plan.endpoint.clone()))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let paths: Vec<&Path> = asked.iter().filter_map(|(_, endpoint)| endpoint.path()).collect();
        let mut found = sock_diag::unix_queues_by_path(&paths).unwrap_or_default().into_iter();
        let mut is_taken = |endpoint: &Endpoint| match endpoint {
            Endpoint::Unix(_) => found.next().flatten().is_some(),
            Endpoint::Tcp(address) => !listener::tcp_listeners(*address).is_empty(),
        };
        let taken: Vec<&(PoolName, Endpoint)> = asked.iter().filter(|(_, endpoint)| is_taken(endpoint)).collect();
        let something = |endpoint: &Endpoint| match endpoint.path().map(listener::examine) {
            Some(Ok(PathState::Other { what })) => Some(what),
            Some(Ok(PathState::Absent | PathState::Stale | PathState::Live) | Err(_)) | None => None,
        };
        let no_sockets: Vec<_> = asked.iter().filter_map(|asked| Some((asked, something(&asked.1)?))).collect();
        for (pool, endpoint) in taken {
            self.bar(pool.clone(), endpoint.clone(), format!("pool '{pool}': somebody listens on {endpoint} already"));
        }
        for ((pool, endpoint), what) in no_sockets {
            self.bar(pool.clone(), endpoint.clone(), format!("pool '{pool}': {endpoint} is a {what}, not a socket"));
        }
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
