//! What stands at a path, held by a handle while it is judged.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::model::listen::PathState;
use crate::sys::directory::{SafeDirectory, locate};

use super::holder::Holder;

/// Tells files apart, whatever they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// The filesystem.
    pub device: u64,
    /// The file in it.
    pub inode: u64,
}

/// A file that was found, held open without being used.
#[derive(Debug)]
pub(super) struct Entry {
    fd: OwnedFd,
    pub(super) id: FileId,
    kind: FileType,
}

/// What connecting to a file showed.
#[derive(Debug)]
pub(super) enum Found {
    Stale,
    Live(Option<Holder>),
    Other(&'static str),
}

/// Looks at `name` without following it.
pub(super) fn look(directory: &SafeDirectory, name: &OsStr) -> io::Result<Option<Entry>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(&directory.fd, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stat = rustix::fs::fstat(&fd)?;
    let id = FileId { device: stat.st_dev, inode: stat.st_ino };
    Ok(Some(Entry { fd, id, kind: FileType::from_raw_mode(stat.st_mode) }))
}

impl Entry {
    pub(super) fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// Gives a path that leads to this very file, whatever its name is by now.
    pub(super) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Gives the file to `owner` and `group`, where they are named.
    pub(super) fn set_owner(&self, owner: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
        rustix::fs::chownat(&self.fd, c"", owner, group, AtFlags::EMPTY_PATH)
    }

    /// Connects without waiting. What was connected is closed when the answer is dropped.
    pub(super) fn connect(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&client, &SocketAddrUnix::new(self.proc_path())?)?;
        Ok(client)
    }

    /// Finds out what the file is; a socket by connecting to it.
    pub(super) fn found(&self) -> io::Result<Found> {
        if !self.is_socket() {
            return Ok(Found::Other(kind_name(self.kind)));
        }
        match self.connect() {
            Ok(client) => Ok(Found::Live(Holder::of_peer(&client))),
            Err(Errno::CONNREFUSED) => Ok(Found::Stale),
            // A full queue, a datagram socket, or one we may not use: somebody holds it.
            Err(Errno::AGAIN | Errno::PROTOTYPE | Errno::ACCESS | Errno::PERM) => Ok(Found::Live(None)),
            Err(error) => Err(error.into()),
        }
    }
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "FIFO",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Socket => "socket",
        FileType::Unknown => "file of unknown kind",
    }
}

/// Removes `name` where nothing can be done about a failure: there is an earlier error to report, and a file that stays is
/// recognised as stale next time.
pub(super) fn clean_up(directory: &SafeDirectory, name: &OsStr) {
    rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty()).ok();
}

/// Renames to a name that is free. Where the filesystem cannot promise that it still is, the look before it must do.
pub(super) fn rename_new(from: (&SafeDirectory, &OsStr), to: (&SafeDirectory, &OsStr)) -> Result<(), Errno> {
    match rustix::fs::renameat_with(&from.0.fd, from.1, &to.0.fd, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => rustix::fs::renameat(&from.0.fd, from.1, &to.0.fd, to.1),
        answer => answer,
    }
}

/// Says what stands at `path`. A missing directory counts as nothing there. A living listener sees one empty connection.
///
/// # Errors
/// When the path cannot be walked safely or the system refuses.
pub fn examine(path: &Path) -> io::Result<PathState> {
    let located = match locate(path) {
        Ok(located) => located,
        Err(error) if error.is_missing() => return Ok(PathState::Absent),
        Err(error) => return Err(io::Error::other(error)),
    };
    let Some(entry) = look(&located.directory, &located.name)? else { return Ok(PathState::Absent) };
    Ok(match entry.found()? {
        Found::Stale => PathState::Stale,
        Found::Live(_) => PathState::Live,
        Found::Other(what) => PathState::Other { what },
    })
}

/// Gives the identity of the file at `path` by its name alone, if there is one: for a look that decides nothing, as others may
/// lead the way there elsewhere.
pub fn identity(path: &Path) -> Option<FileId> {
    let stat = rustix::fs::lstat(path).ok()?;
    Some(FileId { device: stat.st_dev, inode: stat.st_ino })
}

/// Gives the identity of the file at `path`, if there is one. Nothing is connected to.
///
/// # Errors
/// When the path cannot be walked safely or the system refuses.
pub fn file_id(path: &Path) -> io::Result<Option<FileId>> {
    match locate(path) {
        Ok(located) => Ok(look(&located.directory, &located.name)?.map(|entry| entry.id)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}
