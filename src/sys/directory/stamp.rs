//! Whether anything came into a directory or left it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{FileType, is_kind};

/// File times move in steps of some milliseconds, so a change right after another one may not show. Source: `inode(7)`.
const STEP: Duration = Duration::from_secs(1);

/// A directory's identity and the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    changed: Duration,
}

impl Stamp {
    /// Looks at the directory at `path`, by its name alone; `None` where there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let stat = rustix::fs::lstat(path).ok().filter(|stat| is_kind(stat, FileType::Directory))?;
        let changed = Duration::new(stat.st_ctime.try_into().ok()?, stat.st_ctime_nsec.try_into().ok()?);
        Some(Self { device: stat.st_dev, inode: stat.st_ino, changed })
    }

    /// Tells whether the last change is so long ago that the next one must show as another stamp.
    pub fn has_settled(&self) -> bool {
        SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| now > self.changed + STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_shows() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let before = Stamp::of(sandbox.path()).unwrap();
        assert!(!before.has_settled());
        let old = Stamp { changed: before.changed - Duration::from_secs(2), ..before };
        assert!(old.has_settled());
        std::fs::create_dir(sandbox.path().join("php")).unwrap();
        let inside = Stamp::of(&sandbox.path().join("php")).unwrap();
        assert_ne!(Stamp::of(sandbox.path()).unwrap(), old);
        std::fs::remove_dir(sandbox.path().join("php")).unwrap();
        assert_eq!(Stamp::of(&sandbox.path().join("php")), None);
        std::fs::write(sandbox.path().join("php"), "").unwrap();
        assert_eq!(Stamp::of(&sandbox.path().join("php")), None, "{inside:?}");
    }
}
