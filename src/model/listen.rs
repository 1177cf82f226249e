//! What a listening socket must be like: who may connect, how deep its queue is, how it changes hands.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::ids::PoolName;

/// Who may connect to a unix socket, resolved to numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Access {
    /// The owner's uid; `None` leaves the socket with the supervisor's user.
    pub uid: Option<u32>,
    /// The group's gid; `None` leaves it with the supervisor's group.
    pub gid: Option<u32>,
    /// Permission bits, such as `0o660`.
    pub mode: u32,
    /// Users who may connect besides, by POSIX ACL (`listen.acl_users`).
    pub acl_uids: Vec<u32>,
    /// Groups that may connect besides, by POSIX ACL (`listen.acl_groups`).
    pub acl_gids: Vec<u32>,
}

/// How a listener passes from one generation of a shard to the next (`docs/design.md`, handover).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// Each generation binds its own unix socket; the new one is renamed over the public path (P20).
    Rename,
    /// Each generation binds its own TCP socket in a reuseport group; a program steers connections to the new one (P27, P29).
    Steer,
    /// All generations, and all shards of the pool, accept from the same socket (P21).
    Share,
}

/// A listener as planned: one public endpoint for one placement, or one for all shards of a shared pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListenerPlan {
    /// The pool it belongs to.
    pub pool: PoolName,
    /// Where clients connect.
    pub endpoint: Endpoint,
    /// How it changes hands.
    pub handover: Handover,
    /// Who may connect (unix only).
    pub access: Access,
    /// The queue's length in connections, not yet capped by `net.core.somaxconn`.
    pub backlog_connections: u32,
    /// The name under which php-fpm is told of the socket (P2): a path that never exists, or the numeric TCP address.
    pub alias: String,
}

/// A path that stands where a socket is wanted, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathState {
    /// Nothing is there.
    Absent,
    /// A socket file that nobody listens on.
    Stale,
    /// A socket with a live listener.
    Live,
    /// Something that is no socket: `what` names its kind.
    Other {
        /// "regular file", "directory", "FIFO", "device".
        what: &'static str,
    },
}

/// A place for a socket: the directory is checked and open elsewhere, the name has no slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPlace {
    /// The directory, with every link resolved.
    pub directory: PathBuf,
    /// The file's name in it.
    pub name: String,
}
