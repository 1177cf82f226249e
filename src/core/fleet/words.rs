//! What the fleet is told and what it asks for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::shard::Action;
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::snapshot::JobView;
use crate::model::wire::ShardRuns;

/// What a job is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobKind {
    /// A rolling restart.
    Restart,
    /// Bring what runs in line with a new plan.
    Apply,
    /// Take a shard down, its listeners held.
    Park,
    /// Bring a shard up.
    Unpark,
    /// Take a shard out of the upstream, then down.
    Drain,
    /// Replace a hung master.
    Heal,
}

impl JobKind {
    /// Gives the verb as shown.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Apply => "reload",
            Self::Park => "park",
            Self::Unpark => "unpark",
            Self::Drain => "drain",
            Self::Heal => "heal",
        }
    }
}

/// A job as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrder {
    /// What it is for.
    pub kind: JobKind,
    /// The shards it visits, in order.
    pub shards: Vec<ShardId>,
    /// Sets of shards that are handed over together where all of a set that serve are visited.
    pub together: Vec<BTreeSet<ShardId>>,
    /// Shards that leave for good once NGINX no longer names them.
    pub retire: Vec<ShardId>,
    /// Whether NGINX has to be brought up to date.
    pub nginx: NginxStep,
}

/// When a job brings NGINX up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NginxStep {
    /// Never.
    None,
    /// Before the shards are visited: their names leave the upstream first.
    First,
    /// After they have been visited.
    Last,
}

/// What the fleet asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetAction {
    /// Something a shard asks for.
    Shard(Action),
    /// Let the sockets of all these masters take the public paths, all or none, and tell each shard at once.
    SwitchTogether {
        /// Whose.
        masters: Vec<MasterId>,
    },
    /// Bring NGINX up to date and report with [`Fleet::nginx_done`](super::Fleet::nginx_done).
    Nginx,
    /// A job took a step.
    Progress {
        /// The job as it stands.
        job: JobView,
        /// The shard, when the step is one of a shard.
        shard: Option<ShardId>,
        /// The generation, when the step is one of a master.
        generation: Option<Generation>,
        /// The step's word, as in `model::wire::Progress`.
        step: &'static str,
        /// Time since the job began.
        at: Duration,
    },
    /// A job ended.
    Finished {
        /// Its number.
        job: u64,
        /// What it was for.
        kind: JobKind,
        /// Why it stopped early.
        failure: Option<JobFailure>,
        /// What its shards run now.
        shards: Vec<ShardRuns>,
        /// How long it took.
        took: Duration,
    },
}

/// Why a job stopped early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// The shard whose turn it was.
    pub shard: Option<ShardId>,
    /// The generation that failed.
    pub generation: Option<Generation>,
    /// Why.
    pub why: String,
}

/// Another job is under way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("job {} ({}) is under way: {}", .0.job, .0.verb, .0.step)]
pub struct Busy(pub JobView);
