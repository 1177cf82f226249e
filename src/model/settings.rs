//! The settings, resolved: what the file means, with every default filled in.
//!
//! `edge::settings` reads the file as written and makes this from it; `docs/settings.md` describes each key.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cpus::CpuSet;
use super::ids::{GroupName, InstanceName};
use super::problem::Problem;

/// Everything one instance is told by its settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The instance: the file's stem.
    pub instance: InstanceName,
    /// The settings file itself.
    pub file: PathBuf,
    /// `run.directory`: what the instance keeps while it runs; the sockets are below it unless their own keys say otherwise.
    pub runtime_directory: PathBuf,
    /// `[php]`.
    pub php: Php,
    /// `[shards]`, the group `default`, first; then each `[group.NAME]` in the order of the file.
    pub groups: Vec<GroupSettings>,
    /// `shards.routing`.
    pub routing: RoutingChoice,
    /// `[listen]`.
    pub listen: Listen,
    /// `[limits]`.
    pub limits: Limits,
    /// `[health]`.
    pub health: Health,
    /// `[restart]`.
    pub restart: Restart,
    /// `[nginx]`.
    pub nginx: Nginx,
    /// `[control]`.
    pub control: Control,
    /// `[metrics] listen`.
    pub metrics_listen: Option<SocketAddr>,
    /// `[log]`.
    pub log: Log,
    /// Where each key is written.
    pub written: Written,
}

impl Settings {
    /// Adds where `key` (`nginx.include`, `group.store.cpus`, `restart.warmup.0.script`) is written; where it is not, the
    /// file as a whole.
    pub fn point(&self, key: &str, problem: Problem) -> Problem {
        let Some(value) = self.written.0.get(key) else { return problem.at(&self.file, 0) };
        problem.at(&self.file, value.line).excerpt(value.excerpt.clone()).columns(value.columns.0, value.columns.1)
    }

    /// Gives the key of a group's own table, or that of `[shards]` where the group takes its value from there: `group.store.cpus`.
    pub fn group_key(&self, group: &GroupName, key: &str) -> String {
        let own = format!("group.{group}.{key}");
        if self.written.0.contains_key(&own) { own } else { format!("shards.{}", if key == "shards" { "count" } else { key }) }
    }
}

/// Where each key of the settings file is written, by its full name. Variables of `php.environment` are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written(pub BTreeMap<String, WrittenValue>);

/// A value as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenValue {
    /// Its line, from 1.
    pub line: u32,
    /// The line, without secrets.
    pub excerpt: String,
    /// The part of the excerpt that is the value.
    pub columns: (usize, usize),
}

/// `[php]`: which php-fpm, and what masters are started with.
#[derive(Clone, PartialEq, Eq)]
pub struct Php {
    /// The php-fpm binary.
    pub binary: PathBuf,
    /// The operator's `php-fpm.conf`.
    pub config: PathBuf,
    /// php.ini (`-c`).
    pub ini: Option<PathBuf>,
    /// The prefix (`-p`).
    pub prefix: Option<PathBuf>,
    /// INI settings (`-d KEY=VALUE`), in the order of the file.
    pub define: Vec<(String, String)>,
    /// Variables masters get besides `PATH` and `LANG`.
    pub environment: Vec<(String, String)>,
    /// Names or patterns (`*`) of variables taken from the supervisor's own environment.
    pub inherit_environment: Vec<String>,
}

impl fmt::Debug for Php {
    /// Shows the names of the variables alone: their values may be secrets, and this ends in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.environment.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Php")
            .field("binary", &self.binary)
            .field("config", &self.config)
            .field("ini", &self.ini)
            .field("prefix", &self.prefix)
            .field("define", &self.define)
            .field("environment", &names)
            .field("inherit_environment", &self.inherit_environment)
            .finish()
    }
}

/// How many shards a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardCount {
    /// Decided from NGINX and the machine.
    Auto,
    /// As given, at least 1.
    Fixed(u16),
}

/// Which CPUs the shards of a group run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuChoice {
    /// The CPU sets of the NGINX workers.
    Nginx,
    /// From the machine's topology.
    Auto,
    /// No pinning.
    Off,
    /// One set a shard, used in turn.
    Sets(Vec<CpuSet>),
}

/// How a pool's clients reach its shards (`docs/design.md`, routing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoutingChoice {
    /// Decided per pool from what its clients point at.
    Auto,
    /// Every pool on one shard.
    Whole,
    /// One listener for all shards.
    Shared,
    /// A listener for each shard.
    Split,
}

/// A group of pools that share masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSettings {
    /// Its name.
    pub name: GroupName,
    /// Names or patterns (`*`, `?`) of its pools; empty for `default`, which takes the rest.
    pub pools: Vec<String>,
    /// How many shards.
    pub count: ShardCount,
    /// Their CPUs.
    pub cpus: CpuChoice,
    /// A pool is spread only while each shard keeps this many workers.
    pub min_workers: u32,
}

/// `[listen]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The queue's length; `None`: as `net.core.somaxconn` allows.
    pub backlog_connections: Option<u32>,
    /// The directory of the sockets of shards 2…N.
    pub directory: PathBuf,
}

/// A limit that may be off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    Unlimited,
    /// At most this.
    At(u64),
}

/// `[limits]` of each master and so of its workers; `None`: as the supervisor itself has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Core file size in bytes.
    pub core: Option<Limit>,
    /// Processes of the user.
    pub nproc: Option<u64>,
    /// Locked memory in bytes.
    pub memlock: Option<Limit>,
    /// Niceness, -20…19.
    pub nice: Option<i32>,
    /// OOM score adjustment, -1000…1000.
    pub oom_score_adjust: Option<i32>,
    /// Memory of a shard's cgroup in bytes.
    pub memory_max: Option<u64>,
    /// CPU weight of a shard's cgroup, 1…10000.
    pub cpu_weight: Option<u64>,
}

/// `[health]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Time between two looks at each shard.
    pub interval: Duration,
    /// How long one answer may take.
    pub timeout: Duration,
    /// Queue not empty and nothing finished for so long: hung.
    pub hung_after: Duration,
    /// Whether a hung shard is restarted.
    pub restart_hung: bool,
}

/// `[restart]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// How long a master may take to become ready.
    pub ready_timeout: Duration,
    /// How long a busy worker of an old generation may finish.
    pub drain_timeout: Duration,
    /// How long a new master must stay ready before the next shard's turn.
    pub settle: Duration,
    /// Served so long: earlier failures are forgotten.
    pub stable_after: Duration,
    /// First pause after a failed start, doubling to one minute.
    pub backoff: Duration,
    /// Failed starts in a row after which the shard is halted.
    pub give_up_after: u32,
    /// Requests asked of each new master before it takes traffic.
    pub warmup: Vec<Warmup>,
}

/// One `[[restart.warmup]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warmup {
    /// The pool whose user runs it.
    pub pool: String,
    /// The script's file.
    pub script: PathBuf,
    /// The request's URI, with its query.
    pub uri: String,
    /// The expected HTTP status.
    pub expect: u16,
    /// How long it may take.
    pub timeout: Duration,
}

/// How NGINX chooses among a pool's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// In turn, by weight.
    RoundRobin,
    /// The shard with the fewest requests under way.
    LeastConn,
    /// At random, the better of two.
    Random,
    /// Each NGINX worker its own shard first.
    Affine,
}

/// Idle upstream connections kept per NGINX worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepalive {
    /// As many as leave workers free.
    Auto,
    /// As given; 0 is off.
    Fixed(u32),
}

/// `[nginx]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nginx {
    /// Whether polyfpm looks at NGINX and writes its include.
    pub enabled: bool,
    /// The binary.
    pub binary: PathBuf,
    /// The main configuration file.
    pub config: PathBuf,
    /// The generated include.
    pub include: PathBuf,
    /// The pattern of upstream names, with `{instance}` and `{pool}`.
    pub upstream: String,
    /// The balance method.
    pub balance: Balance,
    /// Idle connections.
    pub keepalive: Keepalive,
    /// Whether NGINX is reloaded when the include changes.
    pub reload: bool,
}

/// `[control]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The control socket.
    pub socket: PathBuf,
    /// The group that may read status.
    pub group: Option<String>,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// The journal under systemd, text elsewhere.
    Auto,
    /// Text.
    Text,
    /// JSON lines.
    Json,
    /// The journal.
    Journal,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// What a person must act on.
    Error,
    /// Degraded; polyfpm acts.
    Warn,
    /// Transitions and commands.
    Info,
    /// Decisions and ignored events.
    Debug,
    /// Bytes.
    Trace,
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// How much.
    pub level: LogLevel,
    /// In which form.
    pub format: LogFormat,
}
