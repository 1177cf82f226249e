//! One supervisor per instance.
//!
//! Owns the lock file of an instance. The lock belongs to the open file and ends with its last holder, however that
//! died; the pid inside only tells a person who holds it. Whoever holds it may remove the file at its end, so whoever took
//! a lock looks whether the path still leads to it: a file that was removed in between is locked by nobody else.
//!
//! Source: flock(2), which `File::try_lock` uses.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// A pid has at most ten digits; more than this is no pid.
const PID_BYTES: u64 = 32;

/// The directory may vanish between its making and the file's, when the last supervisor leaves just then; not so often.
const TRIES: u32 = 10;

/// Says why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another supervisor of this instance runs.
    #[error("{} is held by {}", .path.display(), holder(*.pid))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, where its pid could be read.
        pid: Option<Pid>,
    },
    /// The file cannot be used.
    #[error("lock {}", .path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Gives the pid of the supervisor that holds the lock at `path`, if one does, without touching the lock.
///
/// Source: proc_locks(5).
pub fn held_by(path: &Path) -> Option<Pid> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let inode = file.metadata().ok().filter(Metadata::is_file)?.ino();
    let pid = written_pid(&file)?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    // The filesystem's number is told in another form than stat gives it; pid and inode together are proof enough.
    let is_ours = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let kind = fields.next();
        let holder = fields.nth(2).and_then(|field| field.parse::<i32>().ok());
        let locked = fields.next().and_then(|field| field.rsplit(':').next()?.parse::<u64>().ok());
        kind == Some("FLOCK") && holder == Some(pid.as_raw()) && locked == Some(inode)
    };
    table.lines().any(is_ours).then_some(pid)
}

fn holder(pid: Option<Pid>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"))
}

/// The right to be the one supervisor of an instance, until dropped.
#[derive(Debug)]
pub struct InstanceLock(File);

impl InstanceLock {
    /// Takes the lock, making the file and its directory (0755) where they are missing. A symbolic link is not followed.
    ///
    /// # Errors
    /// `Held` when another process has it, `Io` when the file cannot be opened or written.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let mut tries = 0;
        loop {
            if let Some(directory) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
            }
            tries += 1;
            match options.open(path) {
                Ok(file) => {
                    if !file.metadata().is_ok_and(|found| found.is_file()) {
                        return Err(failed(io::Error::other("it is no regular file")));
                    }
                    let lock = Self::lock(file, path)?;
                    if lock.is_at(path) {
                        return Ok(lock);
                    }
                }
                Err(source) if source.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                Err(source) => return Err(failed(source)),
            }
        }
    }

    /// Tells whether the file that is locked is at `path`.
    pub fn is_at(&self, path: &Path) -> bool {
        match (self.0.metadata(), std::fs::symlink_metadata(path)) {
            (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }

    /// Gives the right up and removes the file, if it is still at `path`.
    ///
    /// # Errors
    /// It cannot be removed; the right is given up all the same.
    pub fn give_up(self, path: &Path) -> Result<(), LockError> {
        if self.is_at(path) {
            std::fs::remove_file(path).map_err(|source| LockError::Io { path: path.to_owned(), source })?;
        }
        Ok(())
    }

    /// Goes on holding a lock that was kept open while we executed ourselves again.
    ///
    /// # Errors
    /// As [`InstanceLock::take`].
    pub fn inherited(fd: OwnedFd, path: &Path) -> Result<Self, LockError> {
        Self::lock(File::from(fd), path)
    }

    fn lock(mut file: File, path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held { path: path.to_owned(), pid: written_pid(&file) }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        write_pid(&mut file).map_err(failed)?;
        Ok(Self(file))
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Closing would do, were there not for a moment a second holder: a child between fork and exec.
        let _closing = self.0.unlock();
    }
}

impl AsFd for InstanceLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn written_pid(file: &File) -> Option<Pid> {
    let mut text = String::new();
    file.take(PID_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    use super::*;
    use crate::sys::children::{Children, Exit, Subreaper};
    use crate::sys::spawn::Command;

    #[test]
    fn a_lock_that_was_given_up_leaves_nothing_and_is_no_lock_for_those_who_waited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = InstanceLock::take(&path).unwrap();
        // Somebody opened the file just before it was removed.
        let opened = File::options().read(true).write(true).open(&path).unwrap();
        first.give_up(&path).unwrap();
        assert!(!path.exists());
        let stale = InstanceLock::lock(opened, &path).unwrap();
        assert!(!stale.is_at(&path), "nobody else sees this lock");
        let second = InstanceLock::take(&path).unwrap();
        assert!(second.is_at(&path));
        stale.give_up(&path).unwrap();
        assert!(path.exists(), "another's file is left alone");
        assert!(matches!(InstanceLock::take(&path), Err(LockError::Held { .. })));
    }

    #[test]
    fn the_second_is_told_who_is_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/instance.lock");
        let lock = InstanceLock::take(&path).unwrap();
        let error = InstanceLock::take(&path).unwrap_err();
        assert!(matches!(error, LockError::Held { pid: Some(pid), .. } if pid == nix::unistd::getpid()), "{error:?}");
        assert_eq!(error.to_string(), format!("{} is held by pid {}", path.display(), std::process::id()));
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o755);
        drop(lock);
        InstanceLock::take(&path).unwrap();
    }

    #[tokio::test]
    async fn it_ends_with_a_holder_that_is_killed_and_is_not_passed_to_programs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "4194305000 and more than was written\n").unwrap();
        let lock = InstanceLock::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        let children = Children::start(Subreaper::Yes).unwrap();
        let mut program = children.spawn(&Command::new("/bin/sleep").arg("60")).unwrap();
        drop(lock);
        // flock(1) as another process: it gets the lock although the program started under ours still runs.
        let other = Command::new("/usr/bin/flock").args(["--nonblock"]).arg(&path).args(["/bin/true"]);
        let finished = children.run(other.clone(), Duration::from_secs(10), 1000).await.unwrap();
        assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
        program.signal(nix::sys::signal::Signal::SIGKILL).unwrap();
        program.exit().await;
        let _lock = InstanceLock::take(&path).unwrap();
        let finished = children.run(other, Duration::from_secs(10), 1000).await.unwrap();
        assert_eq!(finished.exit, Exit::Code(1), "{finished:?}");
    }

    #[test]
    fn it_is_held_without_a_gap_by_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = std::mem::ManuallyDrop::new(InstanceLock::take(&path).unwrap());
        let kept = lock.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(InstanceLock::take(&path), Err(LockError::Held { .. })));
        let lock = InstanceLock::inherited(kept, &path).unwrap();
        assert!(matches!(InstanceLock::take(&path), Err(LockError::Held { .. })));
        drop(lock);
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, path) = (directory.path().join("target"), directory.path().join("lock"));
        std::fs::write(&target, "precious").unwrap();
        symlink(&target, &path).unwrap();
        assert!(matches!(InstanceLock::take(&path), Err(LockError::Io { .. })));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
}
