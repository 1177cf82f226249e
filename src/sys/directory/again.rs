//! Making directories again as they were.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::{DirectoryError, SafeDirectory, is_kind, open_path, root_alone_writes};

/// Owner and mode of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    path: PathBuf,
    uid: u32,
    gid: u32,
    mode: u32,
}

/// What a directory and those above it were like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remembered(Vec<Form>);

impl Remembered {
    /// Looks at `path` and every directory above it.
    pub fn of(path: &Path) -> Self {
        let form = |path: &Path| {
            let stat = path.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
            Some(Form { path: path.to_owned(), uid: stat.uid(), gid: stat.gid(), mode: stat.mode() & 0o7777 })
        };
        let mut forms: Vec<Form> = path.ancestors().filter_map(form).collect();
        forms.reverse();
        Self(forms)
    }

    /// Makes those directories again that are missing, each with its owner and mode, where nobody but root, or this process's
    /// user, can write in the directory above: what others made is theirs to make again.
    ///
    /// # Errors
    /// When a directory above is not ours alone, or one cannot be made.
    pub fn make_again(&self) -> Result<(), DirectoryError> {
        self.0.iter().filter(|form| form.path.symlink_metadata().is_err()).try_for_each(Form::make)
    }
}

impl Form {
    fn make(&self) -> Result<(), DirectoryError> {
        let (Some(above), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(()) };
        let failed = |source: rustix::io::Errno| DirectoryError::Make { path: self.path.clone(), source: source.into() };
        let above = SafeDirectory::open(above)?;
        let stat = rustix::fs::fstat(&above.fd).map_err(failed)?;
        if !root_alone_writes(&stat) || !above.is_stable() {
            return Err(DirectoryError::Shared { path: above.path, owner: stat.st_uid, mode: stat.st_mode & 0o7777 });
        }
        rustix::fs::mkdirat(&above.fd, name, Mode::RWXU).map_err(failed)?;
        let made = open_path(&above.fd, name).map_err(failed)?;
        if !is_kind(&made.stat, rustix::fs::FileType::Directory) {
            return Err(DirectoryError::NotDirectory { path: self.path.clone(), component: self.path.clone() });
        }
        // The handle that was judged is for names only; owner and mode need one that is open.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(&made.fd, ".", flags, Mode::empty()).map_err(failed)?;
        rustix::fs::fchown(&open, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid))).map_err(failed)?;
        rustix::fs::fchmod(&open, Mode::from_raw_mode(self.mode)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    const NOBODY: u32 = 65_534;

    #[test]
    fn directories_come_back_as_they_were() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let (php, below) = (sandbox.path().join("php"), sandbox.path().join("php/8.2"));
        fs::create_dir_all(&below).unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(0o2750)).unwrap();
        chown(&below, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(0o2750)).unwrap();
        let was = Remembered::of(&below);
        fs::remove_dir_all(&php).unwrap();
        was.make_again().unwrap();
        assert_eq!(Remembered::of(&below), was);
        // Whoever may write above made it and may make it again.
        fs::remove_dir(&below).unwrap();
        fs::set_permissions(&php, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(was.make_again(), Err(DirectoryError::Shared { .. })));
        assert!(!below.exists());
    }
}
