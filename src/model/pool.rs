//! Pools as the operator's files describe them, after php-fpm's own rules of reading.
//!
//! The raw lines are the truth: values depend on environment and constants, so generated files carry lines over as they
//! stand. The few values polyfpm decides by are kept beside them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::PoolName;

/// Where a line was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The file, as php-fpm opens it.
    pub file: Arc<PathBuf>,
    /// The line, from 1.
    pub line: u32,
}

/// A line of a configuration file that sets something, byte for byte as written, without its line end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawLine {
    /// Where it stands.
    pub origin: Origin,
    /// The bytes of the line.
    pub text: Vec<u8>,
    /// The key in lower case for scalar keys, as written for array keys: `pm.max_children`, `env`.
    pub key: String,
    /// The text between the brackets of an array key: `PATH` in `env[PATH]`.
    pub element: Option<String>,
    /// The value as php-fpm sees it, before `$pool` is replaced.
    pub value: String,
}

/// How php-fpm starts workers (`pm`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessManager {
    /// All workers at once.
    Static,
    /// Between the spare limits.
    Dynamic,
    /// Only when there is work.
    Ondemand,
}

/// The numbers of a pool's workers: of the whole pool in a [`Pool`], of one shard's share in a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct WorkerNumbers {
    /// `pm.max_children`.
    pub max_children: u32,
    /// `pm.start_servers`, where the file sets it to more than 0.
    pub start_servers: Option<u32>,
    /// `pm.min_spare_servers`, where the file sets it.
    pub min_spare_servers: Option<u32>,
    /// `pm.max_spare_servers`, where the file sets it.
    pub max_spare_servers: Option<u32>,
}

/// Who may connect, as the pool file names them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ListenNames {
    /// `listen.owner`: a name or a number.
    pub owner: Option<String>,
    /// `listen.group`.
    pub group: Option<String>,
    /// `listen.mode` (octal in the file); php-fpm's default is `0660`.
    pub mode: Option<u32>,
    /// `listen.acl_users`.
    pub acl_users: Vec<String>,
    /// `listen.acl_groups`.
    pub acl_groups: Vec<String>,
}

/// One pool as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, as first written.
    pub name: PoolName,
    /// The section header's line as first written (`[www]`), byte for byte.
    pub header: Vec<u8>,
    /// Where that header stands.
    pub origin: Origin,
    /// Every line that sets something in the pool, in php-fpm's order of reading.
    pub lines: Vec<RawLine>,
    /// `listen` with `$pool` replaced, as php-fpm sees it.
    pub listen: String,
    /// Where `listen` (the last one) stands.
    pub listen_origin: Option<Origin>,
    /// Who may connect.
    pub listen_names: ListenNames,
    /// `listen.backlog`, when set.
    pub listen_backlog: Option<i32>,
    /// `prefix`, when set.
    pub prefix: Option<PathBuf>,
    /// `user`, when set.
    pub user: Option<String>,
    /// `pm`.
    pub pm: ProcessManager,
    /// The numbers of workers.
    pub workers: WorkerNumbers,
    /// `ping.path`, when set.
    pub ping_path: Option<String>,
    /// `ping.response`, when set.
    pub ping_response: Option<String>,
    /// `pm.status_path`, when set.
    pub status_path: Option<String>,
    /// `request_terminate_timeout`, when set and not 0.
    pub request_terminate_timeout: Option<Duration>,
}

/// The `[global]` section as read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Global {
    /// Every line that sets something in it, in order.
    pub lines: Vec<RawLine>,
    /// `error_log`, when set.
    pub error_log: Option<String>,
    /// `pid`, when set.
    pub pid: Option<String>,
    /// `process.max`, when set and not 0.
    pub process_max: Option<u32>,
}

/// What the main file and everything it includes say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolFiles {
    /// The `[global]` section.
    pub global: Global,
    /// The pools in the order of their first headers.
    pub pools: Vec<Pool>,
    /// Every file that was read, the main one first.
    pub files: Vec<PathBuf>,
    /// Every include pattern with its prefix applied, for watching.
    pub patterns: Vec<PathBuf>,
}

/// A pool that is kept out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// The pool.
    pub pool: PoolName,
    /// What is wrong with it.
    pub problem: super::problem::Problem,
}
