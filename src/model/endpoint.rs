//! Where a pool is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest path a unix socket address can carry, in bytes. Source: unix(7), `sun_path`; P9.
pub const UNIX_PATH_LIMIT_BYTES: usize = 107;

/// The address of a listening socket as clients know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A unix socket at an absolute path with no symbolic link left in it.
    Unix(PathBuf),
    /// A numeric TCP address.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// Gives the path of a unix endpoint.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        SocketAddr::from_str(&text).map(Self::Tcp).map_err(serde::de::Error::custom)
    }
}
