//! Binding unix sockets beside their public path.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, XattrFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::model::endpoint::UNIX_PATH_LIMIT_BYTES;
use crate::model::listen::Access;
use crate::sys::acl;
use crate::sys::directory::{DirectoryError, Located, SafeDirectory, locate};

use super::file::{Entry, Found, clean_up, look, rename_new};
use super::holder::Holder;
use super::{Listener, OWN_PREFIX, Place, inode_of, listen};

/// Says why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path cannot be used safely.
    #[error("bind a socket for '{}'", path.display())]
    Directory {
        /// The public path.
        path: PathBuf,
        /// What is wrong with it.
        source: DirectoryError,
    },
    /// The public path does not fit into a socket address (P9).
    #[error("'{}' has {length} bytes, a unix socket's path at most {UNIX_PATH_LIMIT_BYTES}", path.display())]
    TooLong {
        /// The public path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path is not UTF-8 text.
    #[error("'{}' is not UTF-8 text", path.display())]
    NotText {
        /// The public path.
        path: PathBuf,
    },
    /// A living listener has the temporary name.
    #[error("'{}' is in use{}", path.display(), by(holder.as_ref()))]
    Live {
        /// The temporary path.
        path: PathBuf,
        /// Who listens there, if known.
        holder: Option<Holder>,
    },
    /// The temporary name is taken by something that is no socket.
    #[error("'{}' is a {what}, not a socket", path.display())]
    NotSocket {
        /// The temporary path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The socket's file was replaced by somebody else between bind and use.
    #[error("'{}' was replaced by another file while its socket was being made", path.display())]
    Swapped {
        /// The temporary path.
        path: PathBuf,
    },
    /// The access list cannot be set, most likely because the filesystem has none.
    #[error("set the access list of '{}'", path.display())]
    Acl {
        /// The temporary path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A TCP address is taken.
    #[error("{address} is in use{}", by(holder.as_ref()))]
    AddressInUse {
        /// The address.
        address: SocketAddr,
        /// Who listens there, if known.
        holder: Option<Holder>,
    },
    /// A step failed.
    #[error("{step} {name}")]
    Step {
        /// The step: "bind", "listen", "set owner of".
        step: &'static str,
        /// The path or address.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

impl BindError {
    /// Gives what the operator can do about it, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Live { .. } | Self::AddressInUse { .. } => Some("stop the process that holds it, or let polyfpm take it over"),
            Self::NotSocket { .. } => Some("remove the file, or give the pool another listen path"),
            Self::TooLong { .. } => Some("give the pool a shorter listen path"),
            Self::Acl { .. } => Some("put the socket on a filesystem with access lists, or drop listen.acl_users and listen.acl_groups"),
            Self::Directory { .. } | Self::NotText { .. } | Self::Swapped { .. } | Self::Step { .. } => None,
        }
    }

    pub(super) fn step(step: &'static str, name: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step { step, name: name.into(), source: source.into() }
    }
}

/// Gives " by nginx (pid 12)", or nothing.
pub(super) fn by(holder: Option<&Holder>) -> String {
    holder.map(|holder| format!(" by {holder}")).unwrap_or_default()
}

/// Binds a socket under a temporary name, `public` with `suffix` (such as `.g7`) added, and listens.
///
/// Clients find it only after [`publish()`](super::publish()). Its access is complete before anybody but root can connect. A
/// stale socket that an earlier run left under the temporary name is removed.
///
/// # Errors
/// When the path is unusable or too long, the temporary name is taken, or a step fails; nothing is left behind then.
pub fn bind_unix(public: &Path, suffix: &str, access: &Access, backlog_connections: u32) -> Result<Listener, BindError> {
    let length = public.as_os_str().len();
    if length > UNIX_PATH_LIMIT_BYTES {
        return Err(BindError::TooLong { path: public.to_owned(), length });
    }
    let located = locate(public).map_err(|source| BindError::Directory { path: public.to_owned(), source })?;
    let Located { directory, name } = located;
    let mut temporary = name;
    temporary.push(suffix);
    let path = directory.path.join(&temporary);
    if path.to_str().is_none() {
        return Err(BindError::NotText { path: public.to_owned() });
    }
    clear_leftover(&directory, &temporary, &path)?;
    let (socket, bound) = bind(&directory, &temporary, &path)?;
    let made = finish(&directory, &temporary, &socket, access, backlog_connections);
    if made.is_err() {
        clean_up(&directory, &temporary);
    }
    let (inode, file) = made?;
    let place = Place::Unix { directory: directory.path, name: temporary, file };
    Ok(Listener { fd: Arc::new(socket), inode, bound, place })
}

fn clear_leftover(directory: &SafeDirectory, name: &OsStr, path: &Path) -> Result<(), BindError> {
    let step = |step, source: io::Error| BindError::step(step, path.to_string_lossy(), source);
    let Some(entry) = look(directory, name).map_err(|source| step("look at", source))? else { return Ok(()) };
    match entry.found().map_err(|source| step("look at", source))? {
        Found::Stale => rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty()).map_err(|source| step("remove stale", source.into())),
        Found::Live(holder) => Err(BindError::Live { path: path.to_owned(), holder }),
        Found::Other(what) => Err(BindError::NotSocket { path: path.to_owned(), what }),
    }
}

/// Makes the socket and binds it, by its path where that is short enough and cannot be led astray, otherwise through the
/// directory's handle. Gives the name that accepted connections will carry (P26).
fn bind(directory: &SafeDirectory, name: &OsStr, path: &Path) -> Result<(OwnedFd, String), BindError> {
    let step = |step, source: io::Error| BindError::step(step, path.to_string_lossy(), source);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|source| step("make a socket for", source.into()))?;
    // Linux gives the file the mode of the socket, less the umask; so nobody else can connect until the access is set.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|source| step("restrict", source.into()))?;
    let text = path.to_string_lossy();
    if directory.is_stable() && text.len() <= UNIX_PATH_LIMIT_BYTES {
        bind_to(&socket, &text).map_err(|source| step("bind", source))?;
        return Ok((socket, text.into_owned()));
    }
    // Through a handle the name carries no directory, so it must be unique by itself: the socket's inode makes it so.
    let inode = inode_of(&socket).map_err(|source| step("look at", source))?;
    let unique = OsString::from(format!("{OWN_PREFIX}{inode:x}"));
    let bound = format!("/proc/self/fd/{}/{}", directory.fd.as_raw_fd(), unique.to_string_lossy());
    bind_to(&socket, &bound).map_err(|source| step("bind", source))?;
    let renamed = rename_new((directory, &unique), (directory, name));
    if renamed.is_err() {
        clean_up(directory, &unique);
    }
    renamed.map_err(|source| step("name", source.into()))?;
    Ok((socket, bound))
}

fn bind_to(socket: &OwnedFd, name: &str) -> io::Result<()> {
    Ok(rustix::net::bind(socket, &SocketAddrUnix::new(name)?)?)
}

/// Listens, makes sure that the file is ours, and only then lets others in.
fn finish(
    directory: &SafeDirectory,
    name: &OsStr,
    socket: &OwnedFd,
    access: &Access,
    backlog_connections: u32,
) -> Result<(u64, super::FileId), BindError> {
    let path = directory.path.join(name);
    let step = |step, source: io::Error| BindError::step(step, path.to_string_lossy(), source);
    listen(socket, backlog_connections).map_err(|source| step("listen on", source))?;
    let entry = look(directory, name).map_err(|source| step("look at", source))?;
    let entry = entry.ok_or_else(|| BindError::Swapped { path: path.clone() })?;
    // Where nobody else may write, nobody can have put another file there.
    let is_ours = directory.is_guarded() || leads_to(&entry, socket).map_err(|source| step("try", source))?;
    if !is_ours {
        return Err(BindError::Swapped { path });
    }
    set_access((directory, name), &entry, access, &path)?;
    let inode = inode_of(socket).map_err(|source| step("look at", source))?;
    Ok((inode, entry.id))
}

/// Tells whether connecting to the file reaches `listener`: the one proof that a name still means our socket. What was
/// connected is taken off the queue again, so no master sees it.
fn leads_to(entry: &Entry, listener: &OwnedFd) -> io::Result<bool> {
    if !entry.is_socket() {
        return Ok(false);
    }
    let Ok(_client) = entry.connect() else { return Ok(false) };
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    // Connecting to a unix socket queues the connection before it returns, so there is nothing to wait for.
    if rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&Timespec::default())))? == 0 {
        return Ok(false);
    }
    rustix::io::retry_on_intr(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC))?;
    Ok(true)
}

fn set_access((directory, name): (&SafeDirectory, &OsStr), entry: &Entry, access: &Access, path: &Path) -> Result<(), BindError> {
    let step = |step, source: rustix::io::Errno| BindError::step(step, path.to_string_lossy(), source);
    let has_list = !access.acl_uids.is_empty() || !access.acl_gids.is_empty();
    // With an access list php-fpm ignores owner and group; so do we.
    if !has_list && (access.uid.is_some() || access.gid.is_some()) {
        let owner = access.uid.map(rustix::fs::Uid::from_raw);
        let group = access.gid.map(rustix::fs::Gid::from_raw);
        entry.set_owner(owner, group).map_err(|source| step("set owner of", source))?;
    }
    let mode = access.mode & 0o777;
    let bits = Mode::from_raw_mode(mode);
    // The way through /proc costs as much as the rest of a bind; where nobody else may write, the name does.
    let set = match directory.is_guarded() {
        true => rustix::fs::chmodat(&directory.fd, name, bits, AtFlags::empty()),
        false => rustix::fs::chmod(entry.proc_path(), bits),
    };
    set.map_err(|source| step("set mode of", source))?;
    if has_list {
        let list = acl::encode(mode, &access.acl_uids, &access.acl_gids);
        rustix::fs::setxattr(entry.proc_path(), acl::ATTRIBUTE, &list, XattrFlags::empty())
            .map_err(|source| BindError::Acl { path: path.to_owned(), source: source.into() })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_leads_elsewhere_is_noticed_before_its_access_is_changed() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        // Where root alone may write, nobody is looked for.
        std::fs::set_permissions(sandbox.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let directory = SafeDirectory::open(sandbox.path()).unwrap();
        let bound = |name: &str| {
            let path = sandbox.path().join(name);
            let socket = bind(&directory, OsStr::new(name), &path).unwrap().0;
            listen(&socket, 5).unwrap();
            (socket, look(&directory, OsStr::new(name)).unwrap().unwrap())
        };
        let ((one, one_file), (other, other_file)) = (bound("one"), bound("other"));
        assert!(leads_to(&one_file, &one).unwrap() && leads_to(&other_file, &other).unwrap());
        assert!(!leads_to(&other_file, &one).unwrap());
        std::fs::rename(sandbox.path().join("other"), sandbox.path().join("one")).unwrap();
        let error = finish(&directory, OsStr::new("one"), &one, &Access { mode: 0o666, ..Access::default() }, 5).unwrap_err();
        assert!(matches!(error, BindError::Swapped { .. }), "{error}");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(sandbox.path().join("one")).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
