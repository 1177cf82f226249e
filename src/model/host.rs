//! What was found on this host: the php-fpm build, CPUs, NGINX.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::ids::PoolName;
use super::listen::Access;
use super::topology::{NginxLayout, Topology};

/// A dotted version, compared number by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// What a php-fpm binary can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FpmBuild {
    /// Its version.
    pub version: Version,
    /// Whether it tells readiness and a heartbeat to `NOTIFY_SOCKET` (P30).
    pub systemd: bool,
    /// Whether it knows `pm.status_listen` (8.0 and later, P31).
    pub status_listen: bool,
    /// The first constants a value may name and what they mean in this build, as its dump shows them (`E_ALL`).
    pub constants: BTreeMap<String, String>,
}

/// A pool's `listen` and what goes with it, resolved on this host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedListen {
    /// Where clients connect: links resolved, numeric.
    pub endpoint: Endpoint,
    /// Who may connect, as numbers.
    pub access: Access,
    /// The mount through which the socket file itself is seen inside a container, where it is: a rename would be lost there.
    pub mounted_as: Option<String>,
    /// Whether the socket that stands there is the only one its address can have, as one that was taken over from another
    /// php-fpm is: it was not bound to share it (P27).
    pub only_one: bool,
}

/// What a plan needs to know of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The CPUs, and which of them the supervisor may use.
    pub topology: Topology,
    /// NGINX's workers; `None` where nothing is known of them.
    pub nginx: Option<NginxLayout>,
    /// The memory of the machine, or of our control group.
    pub memory_bytes: Option<u64>,
    /// What each master reserves for its opcache.
    pub opcache_bytes: Option<u64>,
    /// `net.core.somaxconn`.
    pub somaxconn: u32,
    /// Each readable pool's listen.
    pub listens: BTreeMap<PoolName, ResolvedListen>,
}
