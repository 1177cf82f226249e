//! Giving public paths to listeners, and taking them back.
//!
//! Before each rename the file at the path must be nobody's, or the one we put there ourselves: a path that somebody else
//! took in the meantime is theirs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::sys::directory::{DirectoryError, Located, SafeDirectory, locate};

use super::file::{Entry, FileId, Found, clean_up, look, rename_new};
use super::holder::Holder;
use super::unix::by;
use super::{Listener, OWN_PREFIX, Place};

/// What may be replaced at a public path. Nothing and a stale socket always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing else.
    Free,
    /// The socket file that we put there.
    Ours(FileId),
}

/// Says why a public path was not given.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The listener is not a unix socket.
    #[error("{name} has no path to publish")]
    NotUnix {
        /// The listener's address.
        name: String,
    },
    /// A path cannot be used safely.
    #[error("publish a socket at '{}'", path.display())]
    Directory {
        /// The public path.
        path: PathBuf,
        /// What is wrong with it.
        source: DirectoryError,
    },
    /// The file to be published is gone, or another one stands in its place.
    #[error("'{}' is no longer the socket that was to be published", path.display())]
    Vanished {
        /// The file's path.
        path: PathBuf,
    },
    /// A living listener that is not ours has the public path.
    #[error("'{}' is in use{}", path.display(), by(holder.as_ref()))]
    Live {
        /// The public path.
        path: PathBuf,
        /// Who listens there, if known.
        holder: Option<Holder>,
    },
    /// Something that is no socket has the public path.
    #[error("'{}' is a {what}, not a socket", path.display())]
    NotSocket {
        /// The public path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The two paths are on different filesystems, so that no link can be made.
    #[error("'{}' is on another filesystem than the socket that was to be lent", path.display())]
    OtherFilesystem {
        /// The public path that was to be given to a sibling.
        path: PathBuf,
    },
    /// A step failed.
    #[error("{step} '{}'", path.display())]
    Step {
        /// The step: "look at", "rename to", "link to".
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PublishError {
    fn step(step: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Step { step, path: path.to_owned(), source: source.into() }
    }
}

/// Renames a listener's temporary file to `public`: from then on clients reach it there (P20).
///
/// A listener that is already there is left as it is.
///
/// # Errors
/// When something stands at `public` that is not `expected`, the temporary file is gone, or the system refuses; what stood
/// at `public` is untouched then.
pub fn publish(listener: &Listener, public: &Path, expected: Expected) -> Result<(), PublishError> {
    let Place::Unix { directory, name, file } = &listener.place else {
        return Err(PublishError::NotUnix { name: listener.bound.clone() });
    };
    let target = find(public)?;
    let standing = stands(&target)?;
    if standing.as_ref().is_some_and(|entry| entry.id == *file) {
        return Ok(());
    }
    let source = SafeDirectory::open(directory).map_err(|source| PublishError::Directory { path: public.to_owned(), source })?;
    let source = Located { directory: source, name: name.clone() };
    if stands(&source)?.is_none_or(|entry| entry.id != *file) {
        return Err(PublishError::Vanished { path: source.path() });
    }
    replace(&source, &target, standing, expected)
}

/// Gives the path of a shard without a master to a living sibling: a second link to the sibling's socket (`living`, whose
/// file must be `living_file`) is renamed over `dead`.
///
/// Afterwards the file at `dead` is `living_file`; [`publish`] with [`Expected::Ours`] of it takes the path back.
///
/// # Errors
/// When the file at `living` is another one, `dead` is not `expected` or on another filesystem, or the system refuses; what
/// stood at `dead` is untouched then.
pub fn lend(living: &Path, living_file: FileId, dead: &Path, expected: Expected) -> Result<(), PublishError> {
    let source = find(living)?;
    let target = find(dead)?;
    if stands(&source)?.is_none_or(|entry| entry.id != living_file) {
        return Err(PublishError::Vanished { path: living.to_owned() });
    }
    let standing = stands(&target)?;
    if standing.as_ref().is_some_and(|entry| entry.id == living_file) {
        return Ok(());
    }
    let name = OsString::from(format!("{OWN_PREFIX}lent-{:x}", living_file.inode));
    let link = Located { directory: target.directory.clone(), name };
    make_link(&source, &link, dead)?;
    let lent = match stands(&link)? {
        Some(entry) if entry.id == living_file => replace(&link, &target, standing, expected),
        _ => Err(PublishError::Vanished { path: living.to_owned() }),
    };
    if lent.is_err() {
        clean_up(&link.directory, &link.name);
    }
    lent
}

/// Links without following; a link of that name that an earlier, broken attempt left is replaced.
fn make_link(source: &Located, link: &Located, dead: &Path) -> Result<(), PublishError> {
    let attempt = || rustix::fs::linkat(&source.directory.fd, &source.name, &link.directory.fd, &link.name, AtFlags::empty());
    let mut made = attempt();
    if made == Err(Errno::EXIST) && stands(link)?.is_some_and(|entry| entry.is_socket()) {
        clean_up(&link.directory, &link.name);
        made = attempt();
    }
    made.map_err(|error| match error {
        Errno::XDEV => PublishError::OtherFilesystem { path: dead.to_owned() },
        error => PublishError::step("link to", &link.path(), error),
    })
}

/// Removes `public` if the file there is `file`. Tells whether it was.
///
/// # Errors
/// When the directory cannot be opened safely or the system refuses.
pub fn unpublish(public: &Path, file: FileId) -> io::Result<bool> {
    let target = match locate(public) {
        Ok(target) => target,
        Err(error) if error.is_missing() => return Ok(false),
        Err(error) => return Err(io::Error::other(error)),
    };
    if look(&target.directory, &target.name)?.is_none_or(|entry| entry.id != file) {
        return Ok(false);
    }
    rustix::fs::unlinkat(&target.directory.fd, &target.name, AtFlags::empty())?;
    Ok(true)
}

/// Removes the stale sockets of a directory whose name `is_leftover` knows: temporary names of a supervisor that ended
/// between bind and rename. Names that only this module gives are known to it already. Gives how many were removed.
///
/// Living sockets stay, whatever they are called; each sees one empty connection.
///
/// # Errors
/// When the directory cannot be opened safely or read.
pub fn sweep(directory: &Path, is_leftover: impl Fn(&str) -> bool) -> io::Result<usize> {
    let directory = SafeDirectory::open(directory).map_err(io::Error::other)?;
    // The handle we have is good for names only, not for reading.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(&directory.fd, ".", flags, Mode::empty())?;
    let mut removed = 0;
    for entry in rustix::fs::Dir::read_from(readable)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if !name.starts_with(OWN_PREFIX) && !is_leftover(name) {
            continue;
        }
        let name = OsStr::new(name);
        let stale = match look(&directory, name)? {
            Some(file) => file.is_socket() && matches!(file.found()?, Found::Stale),
            None => false,
        };
        if stale {
            rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Tells whether the file at `public` is `file`.
pub fn still_ours(public: &Path, file: FileId) -> bool {
    matches!(super::file_id(public), Ok(Some(found)) if found == file)
}

fn find(public: &Path) -> Result<Located, PublishError> {
    locate(public).map_err(|source| PublishError::Directory { path: public.to_owned(), source })
}

fn stands(located: &Located) -> Result<Option<Entry>, PublishError> {
    look(&located.directory, &located.name).map_err(|source| PublishError::step("look at", &located.path(), source))
}

fn replace(source: &Located, target: &Located, standing: Option<Entry>, expected: Expected) -> Result<(), PublishError> {
    let path = target.path();
    let renamed = match standing {
        // Who binds there between the look and the rename keeps it.
        None => rename_new((&source.directory, &source.name), (&target.directory, &target.name)),
        Some(entry) => {
            check(&entry, expected, &path)?;
            rustix::fs::renameat(&source.directory.fd, &source.name, &target.directory.fd, &target.name)
        }
    };
    renamed.map_err(|source| PublishError::step("rename to", &path, source))
}

fn check(entry: &Entry, expected: Expected, path: &Path) -> Result<(), PublishError> {
    if entry.is_socket() && expected == Expected::Ours(entry.id) {
        return Ok(());
    }
    match entry.found().map_err(|source| PublishError::step("look at", path, source))? {
        Found::Stale => Ok(()),
        Found::Live(holder) => Err(PublishError::Live { path: path.to_owned(), holder }),
        Found::Other(what) => Err(PublishError::NotSocket { path: path.to_owned(), what }),
    }
}
