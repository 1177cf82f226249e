//! The control protocol: JSON lines over the control socket.
//!
//! The client sends one [`Request`] line. The server answers with zero or more [`Reply::Progress`] lines, then exactly
//! one [`Reply::Done`] or [`Reply::Error`], and closes. A `status` with `watch` answers with a [`Reply::Status`] line each
//! time the snapshot changes, until the client goes.
//!
//! | version | change |
//! |---|---|
//! | 1 | first |

use serde::{Deserialize, Serialize};

use super::ids::{Generation, PoolName, ShardId};
use super::preview::Preview;
use super::snapshot::{JobView, Snapshot};

/// The protocol's version; a server refuses any other.
pub const VERSION: u32 = 1;

/// The longest request line, in bytes, its newline included: a thousand shard names fit.
pub const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The protocol's version.
    pub v: u32,
    /// What is wanted.
    #[serde(flatten)]
    pub command: Command,
}

/// Which shards a command means.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// `GROUP` or `GROUP/N`; empty means all.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Only shards that carry this pool.
    #[serde(default)]
    pub pool: Option<PoolName>,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    /// The snapshot, once, or again at each change.
    Status {
        /// Again at each change.
        #[serde(default)]
        watch: bool,
    },
    /// A rolling restart.
    Restart {
        /// Of which shards.
        #[serde(default)]
        selection: Selection,
    },
    /// Read everything again and tell what a reload would change.
    Preview,
    /// Read everything again and change what differs.
    Reload,
    /// Take a shard down, its listeners held.
    Park {
        /// Which shard.
        shard: ShardId,
    },
    /// Bring a parked or halted shard up.
    Unpark {
        /// Which shard.
        shard: ShardId,
    },
    /// Take a shard out of the upstream, then down.
    Drain {
        /// Which shard.
        shard: ShardId,
    },
    /// Stop the supervisor and all masters.
    Stop,
    /// Every master reopens its logs.
    Reopen,
    /// Move the sockets of a running php-fpm, and their pools, under this instance.
    Takeover {
        /// Its unit or its master's pid; without it, whoever listens where pools of this instance want to.
        #[serde(default)]
        from: Option<String>,
        /// Tell the steps and take none.
        #[serde(default)]
        dry_run: bool,
    },
    /// Give the sockets back to a plain php-fpm and end.
    Handback {
        /// The program to start and its arguments; without it and `to`, the unit that was taken over, else this instance's php-fpm
        /// as a daemon.
        #[serde(default)]
        argv: Vec<String>,
        /// The unit to start instead.
        #[serde(default)]
        to: Option<String>,
        /// Tell the steps and take none.
        #[serde(default)]
        dry_run: bool,
    },
    /// Go on as the installed binary, in the same process.
    Upgrade,
}

impl Command {
    /// Gives the command's word.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Restart { .. } => "restart",
            Self::Preview => "preview",
            Self::Reload => "reload",
            Self::Park { .. } => "park",
            Self::Unpark { .. } => "unpark",
            Self::Drain { .. } => "drain",
            Self::Stop => "stop",
            Self::Reopen => "reopen",
            Self::Takeover { .. } => "takeover",
            Self::Handback { .. } => "handback",
            Self::Upgrade => "upgrade",
        }
    }

    /// Tells whether the command changes nothing, so that the control group may give it.
    pub const fn only_reads(&self) -> bool {
        matches!(self, Self::Status { .. })
    }
}

/// A step of a job, as people and scripts follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The job.
    pub job: JobView,
    /// The shard the step belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardId>,
    /// The generation it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The step: "binding", "starting", "verifying", "waiting", "switching", "settling", "draining", "done", "skipped", "failed", "called off", "nginx";
    /// of a take-over and of an upgrade a sentence.
    pub step: String,
    /// Milliseconds since the job began.
    pub at_ms: u64,
}

/// Which generation a shard runs, told when a job ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRuns {
    /// The shard.
    pub shard: ShardId,
    /// The generation that serves it; absent when none does.
    pub generation: Option<Generation>,
    /// "changed", "untouched", "failed".
    pub outcome: String,
}

/// Why a request was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorCode {
    /// The request is not well formed or names nothing that exists.
    Usage,
    /// Another job is under way.
    Busy,
    /// The peer may not ask this.
    Denied,
    /// It was tried and did not succeed.
    Failed,
    /// Settings or pool files are wrong.
    Config,
    /// The supervisor is on its way out.
    Stopping,
}

/// One answer line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "lowercase")]
pub enum Reply {
    /// A step of the job.
    Progress(Progress),
    /// The snapshot.
    Status(Box<Snapshot>),
    /// What a reload would change; the answer to a `preview`, and its last line.
    Preview(Box<Preview>),
    /// Done.
    Done {
        /// What was done, a fragment for people.
        message: String,
        /// What each shard of the job runs now.
        #[serde(default)]
        shards: Vec<ShardRuns>,
    },
    /// Not done.
    Error {
        /// The kind.
        code: ErrorCode,
        /// What went wrong, a lowercase fragment.
        message: String,
        /// The causes, outermost first.
        #[serde(default)]
        causes: Vec<String>,
        /// What to do.
        #[serde(default)]
        hint: Option<String>,
        /// The job that is in the way, when the code is `busy`.
        #[serde(default)]
        job: Option<JobView>,
        /// What each shard of the job runs now.
        #[serde(default)]
        shards: Vec<ShardRuns>,
    },
}
