//! What should run, fully resolved.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cpus::CpuSet;
use super::endpoint::Endpoint;
use super::ids::{GroupName, PoolName, ShardId};
use super::listen::ListenerPlan;
use super::pool::{ProcessManager, Quarantined, WorkerNumbers};

/// How a pool's clients reach its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// On one shard, at its own `listen`.
    Whole,
    /// One listener at the pool's `listen`, every shard's master accepts on it.
    Shared,
    /// A listener for each shard, all named in the pool's upstream.
    Split,
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole",
            Self::Shared => "shared",
            Self::Split => "split",
        })
    }
}

/// A pool's share of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The pool.
    pub pool: PoolName,
    /// Its workers in this shard.
    pub workers: WorkerNumbers,
    /// The listener the shard's master accepts on.
    pub listener: ListenerPlan,
}

/// One shard as planned. A shard with no placements is *empty* and is not started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardPlan {
    /// Which shard.
    pub id: ShardId,
    /// The CPUs of its master and workers; `None`: not pinned.
    pub cpus: Option<CpuSet>,
    /// The pools it carries, in the order of the pool files.
    pub placements: Vec<Placement>,
    /// The shard's share of `process.max`; `None` where the operator sets none.
    pub process_max: Option<u32>,
}

impl ShardPlan {
    /// Gives the names of the pools it carries.
    pub fn pools(&self) -> impl Iterator<Item = &PoolName> {
        self.placements.iter().map(|placement| &placement.pool)
    }

    /// Gives the most workers the shard may have.
    pub fn workers(&self) -> u32 {
        self.placements.iter().fold(0, |sum: u32, placement| sum.saturating_add(placement.workers.max_children))
    }
}

/// How one pool is laid out, for people and for the NGINX include.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPlan {
    /// The pool.
    pub pool: PoolName,
    /// The group it belongs to.
    pub group: GroupName,
    /// How php-fpm starts its workers.
    pub pm: ProcessManager,
    /// Its workers in total.
    pub workers: WorkerNumbers,
    /// Where its socket file is mounted, mostly into a container: a rename over its path does not reach there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted_as: Option<String>,
    /// How it is reached.
    pub routing: Routing,
    /// Why, a fragment: "12 workers are fewer than 2 × 8", "/etc/nginx/sites/a.conf:12 passes to /run/php/www.sock".
    pub reason: String,
    /// The name of its upstream in the generated include, whether or not any client uses it.
    pub upstream: String,
    /// The servers of its upstream: each endpoint with the workers behind it. One for whole and shared pools.
    pub servers: Vec<UpstreamServer>,
}

/// One server of a generated upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamServer {
    /// Where NGINX connects.
    pub endpoint: Endpoint,
    /// The workers behind it, which become its weight.
    pub workers: u32,
    /// The shards that serve it.
    pub shards: Vec<ShardId>,
}

/// The CPUs with what is on them, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuMap {
    /// Every usable CPU, and every other one that an NGINX worker is pinned to.
    pub cpus: Vec<CpuRow>,
    /// NGINX's workers that are pinned to no CPU.
    pub unpinned_nginx_workers: u32,
    /// Why each group has so many shards, and there.
    pub reasons: Vec<(GroupName, String)>,
}

/// One CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuRow {
    /// Its number.
    pub cpu: u32,
    /// Its NUMA node.
    pub node: u32,
    /// The lowest CPU of those that share its last level of cache.
    pub cache: u32,
    /// The lowest CPU of its core.
    pub core: u32,
    /// Whether polyfpm may use it.
    pub usable: bool,
    /// The numbers of the NGINX workers that are pinned to it, from 0.
    pub nginx_workers: Vec<u32>,
    /// The shards that are pinned to it.
    pub shards: Vec<ShardId>,
}

/// What should run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Every shard of every group, in order; empty ones included.
    pub shards: Vec<ShardPlan>,
    /// Every pool that runs.
    pub pools: Vec<PoolPlan>,
    /// Every pool that is kept out.
    pub quarantined: Vec<Quarantined>,
    /// Which CPUs the shards are on, and with whom.
    #[serde(default)]
    pub map: CpuMap,
    /// Every file and directory whose change means a new plan.
    pub watched: Vec<PathBuf>,
}

impl Plan {
    /// Finds a shard.
    pub fn shard(&self, id: &ShardId) -> Option<&ShardPlan> {
        self.shards.iter().find(|shard| &shard.id == id)
    }

    /// Finds a pool.
    pub fn pool(&self, name: &PoolName) -> Option<&PoolPlan> {
        self.pools.iter().find(|pool| &pool.pool == name)
    }
}

/// A digest of everything a master is made from: generated configuration, php.ini and scan directory, binary, extensions, CPUs, limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub String);
