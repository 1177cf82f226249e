//! Listening sockets: binding, access, publishing, examining what stands at a path.
//!
//! Owns the sockets that masters inherit (P1): their mode, owner, access list and backlog (P3), the temporary name under
//! which each is bound, and the rename that makes it the public one (P20). It never steals a path from a living
//! listener and never touches a file that is no socket.
//!
//! Every socket stays blocking, since that flag is shared with php-fpm's workers (P6), so none may be registered with the
//! async runtime; all are close-on-exec until the spawner hands them on.
//!
//! A file that was checked is used through the handle that was checked: modes, owners and probes go by
//! `/proc/self/fd/N`, never again by a name that others may have given to something else.

mod aside;
mod file;
mod holder;
mod keep;
mod publish;
mod tcp;
mod unix;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::net::sockopt;

pub use aside::keep_aside;
pub use file::{FileId, examine, file_id, identity};
pub use holder::{Holder, holder_at, tcp_listeners};
pub use keep::Keep;
pub use publish::{Expected, PublishError, lend, publish, still_ours, sweep, unpublish};
pub use tcp::{Joining, bind_tcp};
pub use unix::{BindError, bind_unix};

/// The kernel's default of `net.core.somaxconn` since 5.4, for the case that it cannot be read.
const SOMAXCONN_DEFAULT: u32 = 4096;

/// Starts the names that files have only within one call.
const OWN_PREFIX: &str = ".polyfpm-";

/// A listening socket of ours.
#[derive(Debug)]
pub struct Listener {
    /// The socket: blocking (P6), close-on-exec.
    pub fd: Arc<OwnedFd>,
    /// The socket's own inode number, by which the kernel's statistics name it.
    pub inode: u64,
    /// The name under which it was bound. Accepted unix connections carry it (P26).
    pub bound: String,
    /// Where it was bound.
    pub place: Place,
}

/// Where a listener was bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A unix socket.
    Unix {
        /// The directory, with every link resolved.
        directory: PathBuf,
        /// The temporary name in it that [`publish()`] turns into the public one.
        name: OsString,
        /// The file's identity, which stays through the rename.
        file: FileId,
    },
    /// A TCP socket.
    Tcp {
        /// The address, with its real port.
        address: SocketAddr,
    },
}

impl Listener {
    /// Gives the identity of the socket's file, for unix sockets.
    ///
    /// It stays true for as long as the listener lives: a bound socket holds its inode, so the number is not used again.
    pub fn file_id(&self) -> Option<FileId> {
        match &self.place {
            Place::Unix { file, .. } => Some(*file),
            Place::Tcp { .. } => None,
        }
    }

    /// Wraps a listening socket that an earlier supervisor, a service manager or another process bound.
    ///
    /// `file` says where its file is (or was last, if it has been published since) and the file's identity, as remembered; a
    /// unix socket needs it.
    ///
    /// # Errors
    /// When `fd` is no listening socket, or a unix socket comes without `file`.
    pub fn adopt(fd: OwnedFd, file: Option<(&Path, FileId)>) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&fd)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK)?;
        }
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        let inode = inode_of(&fd)?;
        let name = rustix::net::getsockname(&fd)?;
        if let Ok(address) = SocketAddr::try_from(name.clone()) {
            return Ok(Self { fd: Arc::new(fd), inode, bound: address.to_string(), place: Place::Tcp { address } });
        }
        let bound = rustix::net::SocketAddrUnix::try_from(name)?;
        let bound = bound.path().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let missing = || io::Error::new(io::ErrorKind::InvalidInput, "a unix socket needs the identity of its file");
        let (path, file) = file.ok_or_else(missing)?;
        let directory = path.parent().map(PathBuf::from).unwrap_or_default();
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        Ok(Self { fd: Arc::new(fd), inode, bound, place: Place::Unix { directory, name, file } })
    }

    /// Removes the temporary file of a unix listener that was never published; does nothing otherwise.
    ///
    /// # Errors
    /// When the directory cannot be opened or the file not be removed.
    pub fn discard(&self) -> io::Result<()> {
        match &self.place {
            Place::Unix { directory, name, file } => unpublish(&directory.join(name), *file).map(drop),
            Place::Tcp { .. } => Ok(()),
        }
    }
}

/// Gives the system's limit on the length of a listen queue (`net.core.somaxconn`), which silently caps longer ones (P41).
pub fn somaxconn() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    text.trim().parse().unwrap_or(SOMAXCONN_DEFAULT)
}

/// Changes the length of a living listener's queue (P3).
///
/// # Errors
/// When the system refuses.
pub fn set_backlog(listener: &Listener, backlog_connections: u32) -> io::Result<()> {
    listen(listener.fd.as_fd(), backlog_connections)
}

/// nix refuses more than 4096 and std has no such call; the kernel takes any number and caps it.
fn listen(fd: impl AsFd, backlog_connections: u32) -> io::Result<()> {
    Ok(rustix::net::listen(fd, i32::try_from(backlog_connections).unwrap_or(i32::MAX))?)
}

/// Gives a socket's own inode number, by which the kernel's statistics name it.
///
/// # Errors
/// When the system refuses.
pub fn inode_of(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_ino)
}
