//! Directories that many paths in a row lead to, walked to once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::{DirectoryError, Located, SafeDirectory};

thread_local! {
    /// The directories of the batch under way on this thread, by the paths that led to them.
    static KNOWN: RefCell<Option<HashMap<PathBuf, SafeDirectory>>> = const { RefCell::new(None) };
}

/// While it lives, [`locate`](super::locate) and [`SafeDirectory::open`] on this thread walk to each directory once.
///
/// A directory was judged when it was reached and is held by its handle, so that whoever moves it or puts a link in its
/// place during the batch changes nothing. The last component is looked at each time. For calls that follow one another at
/// once: a batch that lived for long would go on in a directory that is no longer at its path.
#[derive(Debug)]
#[must_use = "a batch ends when it is dropped"]
pub struct Batch {
    is_outermost: bool,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Batch {
    /// Begins a batch; one within another is part of it.
    pub fn begin() -> Self {
        let is_outermost = KNOWN.with_borrow_mut(|known| match known {
            Some(_) => false,
            None => {
                *known = Some(HashMap::new());
                true
            }
        });
        Self { is_outermost, thread: PhantomData }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.is_outermost {
            KNOWN.set(None);
        }
    }
}

/// Gives the directory at `path`, known from the batch under way or else reached by `walk`.
pub(super) fn reach(path: &Path, walk: impl FnOnce() -> Result<SafeDirectory, DirectoryError>) -> Result<SafeDirectory, DirectoryError> {
    if let Some(directory) = KNOWN.with_borrow(|known| known.as_ref()?.get(path).cloned()) {
        return Ok(directory);
    }
    let directory = walk()?;
    KNOWN.with_borrow_mut(|known| known.as_mut().map(|known| known.insert(path.to_owned(), directory.clone())));
    Ok(directory)
}

/// Finds a place in a directory of the batch under way. `None` where there is no batch, and where only a whole walk can tell:
/// the last component is a link, or something is wrong.
pub(super) fn locate(path: &Path) -> Option<Located> {
    let is_batch = KNOWN.with_borrow(Option::is_some);
    let (parent, name) = path.parent().zip(path.file_name()).filter(|_| is_batch)?;
    let directory = SafeDirectory::open(parent).ok()?;
    let is_link = match rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Symlink,
        Err(Errno::NOENT) => false,
        Err(_) => return None,
    };
    (!is_link).then(|| Located { directory, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn sandbox() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap()
    }

    #[test]
    fn a_batch_gives_what_a_walk_gives() {
        let sandbox = sandbox();
        let at = |name: &str| sandbox.path().join(name);
        fs::create_dir_all(at("real/below")).unwrap();
        symlink("real", at("link")).unwrap();
        symlink("real/moved.sock", at("last.sock")).unwrap();
        fs::write(at("real/there.sock"), "").unwrap();
        let paths = [
            "there.sock",
            "real/there.sock",
            "link/there.sock",
            "link/new.sock",
            "last.sock",
            "none/x",
            "link/..",
            "link/below/../x",
            "real/./there.sock/.",
        ];
        let told = |path: &Path| super::super::locate(path).map(|located| located.path()).map_err(|error| error.to_string());
        let walked: Vec<_> = paths.iter().map(|path| told(&at(path))).collect();
        let batch = Batch::begin();
        for round in 0..2 {
            for (path, walked) in paths.iter().zip(&walked) {
                assert_eq!(told(&at(path)), *walked, "{path} in round {round}");
            }
        }
        assert!(told(Path::new("relative/x")).is_err());
        drop(batch);
    }

    #[test]
    fn a_directory_that_is_swapped_during_a_batch_stays_the_one_that_was_judged() {
        let sandbox = sandbox();
        let at = |name: &str| sandbox.path().join(name);
        fs::create_dir_all(at("run")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        let identity = |path: &Path| rustix::fs::fstat(&super::super::locate(path).unwrap().directory.fd).unwrap().st_ino;
        let judged = identity(&at("run/x"));
        let outer = Batch::begin();
        assert_eq!(identity(&at("run/x")), judged);
        fs::rename(at("run"), at("away")).unwrap();
        symlink("etc", at("run")).unwrap();
        drop(Batch::begin());
        assert_eq!(identity(&at("run/y")), judged, "a batch within a batch does not end it");
        drop(outer);
        assert_ne!(identity(&at("run/y")), judged);
    }

    #[test]
    fn a_link_at_the_end_is_judged_each_time() {
        let sandbox = sandbox();
        let at = |name: &str| sandbox.path().join(name);
        fs::create_dir(at("theirs")).unwrap();
        std::os::unix::fs::chown(at("theirs"), Some(65_534), None).unwrap();
        let _batch = Batch::begin();
        assert!(super::super::locate(&at("theirs/x.sock")).is_ok());
        symlink("/etc/passwd", at("theirs/x.sock")).unwrap();
        std::os::unix::fs::lchown(at("theirs/x.sock"), Some(65_534), None).unwrap();
        assert!(matches!(super::super::locate(&at("theirs/x.sock")), Err(DirectoryError::Link { .. })));
    }
}
