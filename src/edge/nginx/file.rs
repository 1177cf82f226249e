//! The include as a file: read, replaced as a whole, put back.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::state::canonical;
use crate::sys::directory::{DirectoryError, Located, locate};
use crate::text::nginx::generated_for;

/// 64 MiB: far beyond any include of ours, so that a wrong path does not fill the memory.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// NGINX's workers do not read it, but people and tools do.
const MODE: Mode = Mode::from_raw_mode(0o644);

/// Says why the include cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Its directory cannot be reached safely.
    #[error("find the NGINX include")]
    Directory(#[from] DirectoryError),
    /// It is no regular file.
    #[error("the NGINX include '{}' is no regular file", .0.display())]
    Kind(PathBuf),
    /// It is larger than anything polyfpm writes.
    #[error("the NGINX include '{}' is larger than {LIMIT_BYTES} bytes", .0.display())]
    Large(PathBuf),
    /// It cannot be read.
    #[error("read the NGINX include '{}'", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("write the NGINX include '{}'", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What stands in the file.
#[derive(Debug, Clone)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) modified: Option<SystemTime>,
}

/// The place of the include, its directory held open.
#[derive(Debug)]
pub(super) struct IncludeFile {
    located: Located,
}

impl IncludeFile {
    /// Finds the place. Links are followed only where nobody but root could have made them.
    pub(super) fn find(path: &Path) -> Result<Self, FileError> {
        Ok(Self { located: locate(path)? })
    }

    /// Gives a second handle on the same place.
    pub(super) fn try_clone(&self) -> Result<Self, FileError> {
        let directory = self.located.directory.clone();
        Ok(Self { located: Located { directory, name: self.located.name.clone() } })
    }

    /// Gives its path with every link resolved.
    pub(super) fn path(&self) -> PathBuf {
        self.located.path()
    }

    /// Gives what stands in it; `None` where there is no file.
    pub(super) fn read(&self) -> Result<Option<Content>, FileError> {
        let read_error = |source: io::Error| FileError::Read { path: self.path(), source };
        // Without O_NONBLOCK the open of a FIFO would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.located.directory.fd, &self.located.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(read_error(errno.into())),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| read_error(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::Kind(self.path()));
        }
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let mut bytes = Vec::new();
        file.take(LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LIMIT_BYTES {
            return Err(FileError::Large(self.path()));
        }
        Ok(Some(Content { bytes, modified }))
    }

    /// Replaces the file as a whole: readers see the old or the new one, never a part, and a crash leaves one of them.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), FileError> {
        let temporary = self.temporary();
        self.write_at(&temporary, bytes).map_err(|source| {
            // Whatever was left of it; that it may not exist is fine.
            let _removed = rustix::fs::unlinkat(&self.located.directory.fd, &temporary, AtFlags::empty());
            FileError::Write { path: self.path(), source }
        })
    }

    /// Makes the file hold what stood in it before; removes it where there was none.
    pub(super) fn restore(&self, before: Option<&Content>) -> Result<(), FileError> {
        let Some(content) = before else {
            return match rustix::fs::unlinkat(&self.located.directory.fd, &self.located.name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
                Err(errno) => Err(FileError::Write { path: self.path(), source: errno.into() }),
            };
        };
        self.write(&content.bytes)
    }

    /// The leading dot keeps it out of NGINX's patterns such as `conf.d/*`.
    fn temporary(&self) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.located.name);
        name.push(".polyfpm-new");
        name
    }

    fn write_at(&self, temporary: &OsString, bytes: &[u8]) -> io::Result<()> {
        let directory = &self.located.directory.fd;
        // A crash may have left one; EXCL so that nobody's file or link of that name is written through.
        match rustix::fs::unlinkat(directory, temporary, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(directory, temporary, flags, Mode::from_raw_mode(0o600))?);
        file.write_all(bytes)?;
        rustix::fs::fchmod(&file, MODE)?;
        file.sync_all()?;
        rustix::fs::renameat(directory, temporary, directory, &self.located.name)?;
        // The rename itself must last too. The handle is O_PATH and cannot be synced.
        let opened = rustix::fs::openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fsync(&opened)?;
        Ok(())
    }
}

/// Whose file stands where the include belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody's: there is none, or an empty one.
    Nothing,
    /// It was generated for this instance.
    Generated(String),
    /// Something polyfpm did not write.
    Foreign,
}

/// Tells whose file stands at `path`.
///
/// # Errors
/// When its directory or the file itself cannot be used.
pub fn standing(path: &Path) -> Result<Standing, FileError> {
    let Some(content) = IncludeFile::find(path)?.read()? else { return Ok(Standing::Nothing) };
    let text = String::from_utf8_lossy(&content.bytes);
    Ok(match generated_for(&text) {
        Some(instance) => Standing::Generated(instance.to_owned()),
        None if text.trim().is_empty() => Standing::Nothing,
        None => Standing::Foreign,
    })
}

/// Gives the path with its links resolved, or as it is where that cannot be done.
pub(super) fn real_path(path: &Path) -> PathBuf {
    canonical(path).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    const NOBODY: u32 = 65_534;

    #[test]
    fn a_file_is_replaced_and_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.conf");
        let file = IncludeFile::find(&path).unwrap();
        assert!(file.read().unwrap().is_none());
        file.write(b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        let before = file.read().unwrap();
        file.write(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        file.restore(before.as_ref()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        file.restore(None).unwrap();
        file.restore(None).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, directory.path().join(".x.conf.polyfpm-new")).unwrap();
        IncludeFile::find(&directory.path().join("x.conf")).unwrap().write(b"one").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        assert_eq!(fs::read(directory.path().join("x.conf")).unwrap(), b"one");
    }

    #[test]
    fn a_link_of_somebody_else_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let theirs = directory.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        symlink("/etc/nginx/nginx.conf", theirs.join("x.conf")).unwrap();
        lchown(theirs.join("x.conf"), Some(NOBODY), Some(NOBODY)).unwrap();
        assert!(matches!(IncludeFile::find(&theirs.join("x.conf")), Err(FileError::Directory(DirectoryError::Link { .. }))));
    }

    #[test]
    fn what_is_no_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.conf");
        fs::create_dir(&path).unwrap();
        assert!(matches!(IncludeFile::find(&path).unwrap().read(), Err(FileError::Kind(_))));
        assert!(matches!(IncludeFile::find(&path.join("y/z")), Err(FileError::Directory(error)) if error.is_missing()));
    }
}
