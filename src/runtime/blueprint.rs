//! What one shard is made from: its share of the plan, rendered and digested.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::model::ids::PoolName;
use crate::model::plan::{Fingerprint, ShardPlan};
use crate::model::settings::Warmup;

/// A pool's private status listener: where verification, warm-up and status go (P28, P31).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StatusPoint {
    /// The pool.
    pub pool: PoolName,
    /// The name php-fpm is told.
    pub alias: String,
    /// The path that answers pings there.
    pub ping_path: String,
    /// What a ping answers.
    pub ping_response: String,
    /// The path that answers status.
    pub status_path: String,
}

/// Everything a master of one shard is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// The shard as planned.
    pub plan: ShardPlan,
    /// The generated configuration.
    pub config: Vec<u8>,
    /// The private status listeners, one for each pool that has one.
    pub status: Vec<StatusPoint>,
    /// The warm-up requests of its pools.
    pub warmups: Vec<Warmup>,
    /// The digest of all that matters.
    pub fingerprint: Fingerprint,
    /// A digest of each part that is not its configuration, by which a change is told; empty where it is not known.
    pub parts: BTreeMap<String, String>,
    /// The php-fpm binary.
    pub binary: PathBuf,
    /// Its arguments besides the configuration file.
    pub arguments: Vec<OsString>,
    /// The environment of the master, without what polyfpm adds.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether the master tells readiness to a notify socket (P30).
    pub notifies: Notifies,
    /// Whether fd 2 of the master stays the supervisor's own, because the operator logs there.
    pub stderr: StderrChoice,
}

/// How readiness is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notifies {
    /// By READY on its private notify socket.
    Yes,
    /// Not at all: the status socket answering is readiness.
    No,
}

/// Where a master's standard error goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StderrChoice {
    /// To a file of its generation, so that start-up errors can be shown.
    File,
    /// To the supervisor's own: `error_log = /proc/self/fd/2`, as in containers.
    Inherit,
}
