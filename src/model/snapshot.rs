//! The published picture of now. Status, metrics and every other reader see only this.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cpus::CpuSet;
use super::endpoint::Endpoint;
use super::ids::{Generation, GroupName, InstanceName, PoolName, ShardId};
use super::plan::Routing;
use super::pool::Quarantined;

/// How a shard is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No pools: not started, not counted.
    Empty,
    /// Its first master is on its way.
    Starting,
    /// Serving.
    Ready,
    /// Serving, every worker at work, nothing waits.
    Busy,
    /// Every worker at work and requests wait.
    Saturated,
    /// Requests wait and nothing finishes though workers are not at work.
    Hung,
    /// A start failed; the next follows after a pause.
    Flapping,
    /// The budget of failed starts is spent; waits for the operator.
    Halted,
    /// Down because the operator wants it.
    Parked,
}

impl Verdict {
    /// Gives the word as shown and serialised.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Busy => "busy",
            Self::Saturated => "saturated",
            Self::Hung => "hung",
            Self::Flapping => "flapping",
            Self::Halted => "halted",
            Self::Parked => "parked",
        }
    }
}

/// A listening socket's queue as the kernel counts it (P33); for TCP from `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueDepth {
    /// Connections that wait to be accepted.
    pub now: u32,
    /// The most that may wait.
    pub max: u32,
}

/// One generation that was told to leave and is not gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavingView {
    /// Which generation.
    pub generation: Generation,
    /// Its master, while it lives.
    pub pid: Option<u32>,
    /// What it waits for: "queue", "requests", "end".
    pub step: String,
    /// For how long it has been leaving.
    pub seconds: u64,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardView {
    /// Its group.
    pub group: GroupName,
    /// Its name, `store/2`.
    pub shard: ShardId,
    /// The generation that serves, or is starting; 0 when there was none.
    pub generation: Generation,
    /// The pid of that generation's master.
    pub pid: Option<u32>,
    /// Its CPUs, `0-3`; absent when it is not pinned.
    pub cpus: Option<CpuSet>,
    /// How it is doing.
    pub verdict: Verdict,
    /// Why, when the verdict is not plainly good: the last failure, with the place.
    pub reason: Option<String>,
    /// Workers in a request; absent when not known.
    pub workers_busy: Option<u32>,
    /// Workers that may run at most.
    pub workers_total: u32,
    /// Its queues, summed over listeners that only this shard serves.
    pub queue: Option<QueueDepth>,
    /// Requests a second over the last interval; absent when not known.
    pub requests_per_second: Option<f64>,
    /// For how long the serving generation has been serving.
    pub uptime_seconds: Option<u64>,
    /// Failed starts in a row.
    pub failures: u32,
    /// Old generations on their way out.
    pub leaving: Vec<LeavingView>,
    /// The pools it carries.
    pub pools: Arc<Vec<PoolName>>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// The pool.
    pub pool: PoolName,
    /// Its group.
    pub group: GroupName,
    /// How it is reached.
    pub routing: Routing,
    /// Where, for each listener.
    pub listeners: Vec<ListenerView>,
    /// Workers in total.
    pub workers: u32,
}

/// One public endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerView {
    /// Where clients connect.
    pub endpoint: Endpoint,
    /// The shards that accept there.
    pub shards: Vec<ShardId>,
    /// Its queue.
    pub queue: Option<QueueDepth>,
    /// Why clients do not reach it, where that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How often its path was gone and was made again since the supervisor's start.
    #[serde(default)]
    pub made_again: u32,
}

/// What NGINX was last seen to do with the include.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NginxView {
    /// "off", "current", "written" (not reloaded), "absent", "broken" (somebody else's configuration), "failed".
    pub state: String,
    /// More about it.
    pub detail: Option<String>,
    /// Reloads polyfpm asked for since its start.
    pub reloads: u64,
}

/// The control groups of masters, as they were when the last one was started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CgroupView {
    /// The group below which those of shards are; absent where masters have none.
    pub base: Option<String>,
    /// Whether the settings ask for limits by them.
    pub limits: bool,
    /// Why there is none, or which limit is not held.
    pub lacks: Vec<String>,
}

/// One fleet operation under way, or the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// Its number since the supervisor's start.
    pub job: u64,
    /// "restart", "reload", "park", "unpark", "drain", "heal", "upgrade", "stop".
    pub verb: String,
    /// Shards that are done.
    pub done: u32,
    /// Shards it covers.
    pub total: u32,
    /// What it does now, a fragment: "default/2#5: waiting for readiness".
    pub step: String,
}

/// The picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of this form.
    pub v: u32,
    /// The instance.
    pub instance: InstanceName,
    /// The supervisor's version.
    pub version: String,
    /// The supervisor's pid.
    pub pid: u32,
    /// For how long the supervisor has been running.
    pub uptime_seconds: u64,
    /// Whether every shard that should serve does.
    pub healthy: bool,
    /// Every shard.
    pub shards: Vec<ShardView>,
    /// Every pool that runs.
    pub pools: Arc<Vec<PoolView>>,
    /// Every pool that is kept out.
    pub quarantined: Vec<Quarantined>,
    /// NGINX.
    pub nginx: NginxView,
    /// Control groups; absent before the first master and from older supervisors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroups: Option<CgroupView>,
    /// The job under way.
    pub job: Option<JobView>,
}

impl Snapshot {
    /// The version of the snapshot's form; raised when a field changes its meaning.
    pub const VERSION: u32 = 1;
}

/// Gives whole seconds for views.
pub fn seconds(span: Duration) -> u64 {
    span.as_secs()
}
