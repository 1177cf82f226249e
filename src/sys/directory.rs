//! Directories in which others may write: opening them without following their links.
//!
//! Owns the way from a path as written to an open directory and a name in it. It removes nothing, and creates only the
//! directories that are to be root's own.
//!
//! A root daemon that binds, renames and unlinks below `/home/USER/run` must not be led elsewhere by a link that USER
//! puts there. So a path is walked component by component over directory handles: a link is followed only where nobody
//! but root could have made it, that is, where its directory can be written by root alone or the link belongs to root.
//! What is reached is held by its handle, so that a later swap of a component does not matter.
//! A supervisor that does not run as root trusts its own user as it trusts root.
//!
//! Source: openat(2), "Rationale for openat()"; open(2), `O_PATH`; sticky directories: unlink(2), `EPERM`.

mod again;
mod batch;
mod stamp;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat};

pub use again::Remembered;
pub use batch::Batch;
pub use stamp::Stamp;

/// The kernel's own limit on links in one path. Source: `path_resolution(7)`, `MAXSYMLINKS`.
const LINK_LIMIT: u32 = 40;

/// Says why a path cannot be used safely.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The path does not start at the root.
    #[error("'{}' is not an absolute path", path.display())]
    Relative {
        /// The path as given.
        path: PathBuf,
    },
    /// The path ends in `..` or is the root, so that it names no file in a directory.
    #[error("'{}' names no file in a directory", path.display())]
    NoName {
        /// The path as given.
        path: PathBuf,
    },
    /// A link stands where others than root could have put it.
    #[error("link '{}' in the way of '{}' belongs to uid {owner} and its directory can be written by others than root: not followed", link.display(), path.display())]
    Link {
        /// The path as given.
        path: PathBuf,
        /// The link.
        link: PathBuf,
        /// The link's owner.
        owner: u32,
    },
    /// Too many links, most likely a loop.
    #[error("'{}' goes through more than {LINK_LIMIT} links, the last one '{}'", path.display(), link.display())]
    Loop {
        /// The path as given.
        path: PathBuf,
        /// The link at which the walk stopped.
        link: PathBuf,
    },
    /// A component that should be a directory is none.
    #[error("'{}' in the way of '{}' is not a directory", component.display(), path.display())]
    NotDirectory {
        /// The path as given.
        path: PathBuf,
        /// The component.
        component: PathBuf,
    },
    /// A directory that should be ours alone is not.
    #[error("directory '{}' belongs to uid {owner} with mode {mode:o}: others could change what is in it", path.display())]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory above one that should be ours alone can be written by others.
    #[error("directory '{}' could be swapped for another: one above it can be written by others than root", path.display())]
    Unstable {
        /// The directory.
        path: PathBuf,
    },
    /// A directory cannot be made.
    #[error("make directory '{}'", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A component cannot be opened.
    #[error("open '{}' in the way of '{}'", component.display(), path.display())]
    Open {
        /// The path as given.
        path: PathBuf,
        /// The component.
        component: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DirectoryError {
    /// Tells whether a directory on the way does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A directory that was reached safely, held open. Clones share the handle.
#[derive(Debug, Clone)]
pub struct SafeDirectory {
    /// The handle (`O_PATH | O_DIRECTORY`, close-on-exec).
    pub fd: Arc<OwnedFd>,
    /// Its path with every link resolved.
    pub path: PathBuf,
    stable: bool,
    guarded: bool,
}

impl SafeDirectory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// When the path is relative, a component is missing or no directory, or a link is not to be trusted.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        batch::reach(path, || Self::walk_to(path))
    }

    fn walk_to(path: &Path) -> Result<Self, DirectoryError> {
        let mut walk = Walk::start(path)?;
        while let Some(component) = walk.pending.pop_front() {
            let entry = walk.look(&component)?;
            walk.enter(&component, entry)?;
        }
        Ok(walk.into_directory())
    }

    /// Tells whether nobody but root could make [`path`](Self::path) name another directory.
    ///
    /// Where not, use the handle and not the path.
    pub fn is_stable(&self) -> bool {
        self.stable
    }

    /// Tells whether nobody but root, or this process's user, could change what is in it when it was opened.
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }
}

/// A place for a file: the open directory and a name in it that is no link (the file itself may be missing).
#[derive(Debug)]
pub struct Located {
    /// The directory.
    pub directory: SafeDirectory,
    /// The name, without a slash.
    pub name: OsString,
}

impl Located {
    /// Gives the path with every link resolved.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }
}

/// Finds the directory and the name that `path` stands for; a link at its end is resolved like the others.
///
/// # Errors
/// When the path is relative or names no file, a directory is missing, or a link is not to be trusted.
pub fn locate(path: &Path) -> Result<Located, DirectoryError> {
    if let Some(located) = batch::locate(path) {
        return Ok(located);
    }
    let mut walk = Walk::start(path)?;
    while let Some(component) = walk.pending.pop_front() {
        if !walk.pending.is_empty() || component == ".." {
            let entry = walk.look(&component)?;
            walk.enter(&component, entry)?;
            continue;
        }
        match walk.look(&component) {
            Ok(entry) if is_kind(&entry.stat, FileType::Symlink) => walk.enter(&component, entry)?,
            Ok(_) => return Ok(Located { directory: walk.into_directory(), name: component }),
            Err(error) if error.is_missing() => return Ok(Located { directory: walk.into_directory(), name: component }),
            Err(error) => return Err(error),
        }
    }
    Err(DirectoryError::NoName { path: path.to_owned() })
}

/// Gives `path` with every link resolved; the file itself may be missing, its directory may not.
///
/// # Errors
/// As [`locate`].
pub fn resolve(path: &Path) -> Result<PathBuf, DirectoryError> {
    locate(path).map(|located| located.path())
}

/// Makes a directory where it is missing, with those above it, but never through a link that others could have made.
///
/// # Errors
/// When a directory on the way cannot be trusted or made.
pub fn make(path: &Path, mode: u32) -> Result<(), DirectoryError> {
    let existing = path.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    SafeDirectory::open(existing)?;
    let failed = |source| DirectoryError::Make { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)
}

/// Opens a directory in which nobody but root, or this process's user, can change anything, and which nobody else can swap
/// for another; makes it where it is missing.
///
/// # Errors
/// When it cannot be made, or is not ours alone.
pub fn own(path: &Path, mode: u32) -> Result<SafeDirectory, DirectoryError> {
    make(path, mode)?;
    vouch(path)
}

/// Opens an existing directory as [`own`] does.
///
/// # Errors
/// When it is missing, or not ours alone.
pub fn vouch(path: &Path) -> Result<SafeDirectory, DirectoryError> {
    let directory = SafeDirectory::open(path)?;
    let failed =
        |source: rustix::io::Errno| DirectoryError::Open { path: path.to_owned(), component: path.to_owned(), source: source.into() };
    let stat = rustix::fs::fstat(&directory.fd).map_err(failed)?;
    if !root_alone_writes(&stat) {
        return Err(DirectoryError::Shared { path: path.to_owned(), owner: stat.st_uid, mode: stat.st_mode & 0o7777 });
    }
    if !directory.is_stable() {
        return Err(DirectoryError::Unstable { path: path.to_owned() });
    }
    Ok(directory)
}

struct Entry {
    fd: OwnedFd,
    stat: Stat,
}

struct Walk<'p> {
    asked: &'p Path,
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
    stable: bool,
    pending: VecDeque<OsString>,
    links: u32,
}

impl<'p> Walk<'p> {
    fn start(asked: &'p Path) -> Result<Self, DirectoryError> {
        if !asked.is_absolute() {
            return Err(DirectoryError::Relative { path: asked.to_owned() });
        }
        let Entry { fd, stat } = open_root().map_err(|source| DirectoryError::Open {
            path: asked.to_owned(),
            component: PathBuf::from("/"),
            source: source.into(),
        })?;
        let pending = components(asked).collect();
        Ok(Self { asked, fd, stat, path: PathBuf::from("/"), stable: true, pending, links: 0 })
    }

    /// Opens `component` of the current directory without following it.
    fn look(&self, component: &OsStr) -> Result<Entry, DirectoryError> {
        open_path(&self.fd, component).map_err(|source| self.open_error(component, source))
    }

    fn open_error(&self, component: &OsStr, source: rustix::io::Errno) -> DirectoryError {
        DirectoryError::Open { path: self.asked.to_owned(), component: self.path.join(component), source: source.into() }
    }

    /// Goes on into a directory, or through a link that can be trusted.
    fn enter(&mut self, component: &OsStr, entry: Entry) -> Result<(), DirectoryError> {
        if is_kind(&entry.stat, FileType::Symlink) {
            return self.follow(component, &entry);
        }
        if !is_kind(&entry.stat, FileType::Directory) {
            return Err(DirectoryError::NotDirectory { path: self.asked.to_owned(), component: self.path.join(component) });
        }
        if component == ".." {
            self.path.pop();
        } else {
            self.stable &= root_alone_writes(&self.stat) || (is_sticky(&self.stat) && is_trusted(entry.stat.st_uid));
            self.path.push(component);
        }
        self.fd = entry.fd;
        self.stat = entry.stat;
        Ok(())
    }

    fn follow(&mut self, component: &OsStr, link: &Entry) -> Result<(), DirectoryError> {
        let link_path = self.path.join(component);
        if !root_alone_writes(&self.stat) && !is_trusted(link.stat.st_uid) {
            return Err(DirectoryError::Link { path: self.asked.to_owned(), link: link_path, owner: link.stat.st_uid });
        }
        self.links += 1;
        if self.links > LINK_LIMIT {
            return Err(DirectoryError::Loop { path: self.asked.to_owned(), link: link_path });
        }
        // Read through the handle that was judged, not again by name.
        let target = rustix::fs::readlinkat(&link.fd, "", Vec::new()).map_err(|source| self.open_error(component, source))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        for part in components(&target).collect::<Vec<_>>().into_iter().rev() {
            self.pending.push_front(part);
        }
        if target.is_absolute() {
            let Entry { fd, stat } = open_root().map_err(|source| self.open_error(OsStr::new("/"), source))?;
            (self.fd, self.stat, self.path, self.stable) = (fd, stat, PathBuf::from("/"), true);
        }
        Ok(())
    }

    fn into_directory(self) -> SafeDirectory {
        let guarded = root_alone_writes(&self.stat);
        SafeDirectory { fd: Arc::new(self.fd), path: self.path, stable: self.stable, guarded }
    }
}

fn components(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn open_root() -> rustix::io::Result<Entry> {
    let fd = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok(Entry { fd, stat })
}

fn open_path(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<Entry> {
    let fd = rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok(Entry { fd, stat })
}

fn is_kind(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Group bits count whatever the group: they also stand for the mask of an access control list.
fn root_alone_writes(stat: &Stat) -> bool {
    is_trusted(stat.st_uid) && stat.st_mode & 0o022 == 0
}

fn is_sticky(stat: &Stat) -> bool {
    stat.st_mode & 0o1000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::{fs, io::Write as _};

    const NOBODY: u32 = 65_534;

    fn sandbox() -> tempfile::TempDir {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
        sandbox
    }

    fn directory(path: PathBuf, owner: u32, mode: u32) -> PathBuf {
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        path
    }

    fn link(target: impl AsRef<Path>, at: &Path, owner: u32) {
        symlink(target, at).unwrap();
        std::os::unix::fs::lchown(at, Some(owner), Some(owner)).unwrap();
    }

    #[test]
    fn a_directory_that_others_made_or_may_write_is_not_ours() {
        let sandbox = sandbox();
        let ours = sandbox.path().join("a/b");
        own(&ours, 0o755).unwrap();
        assert_eq!(own(&ours, 0o755).unwrap().path, ours);
        for (name, owner, mode) in [("theirs", NOBODY, 0o755), ("open", 0, 0o777), ("grouped", 0, 0o775)] {
            let path = directory(sandbox.path().join(name), owner, mode);
            assert!(matches!(own(&path, 0o755), Err(DirectoryError::Shared { .. })), "{name}");
        }
        // What is ours in a directory of theirs can be swapped for something else.
        let inside = directory(sandbox.path().join("theirs/ours"), 0, 0o755);
        assert!(matches!(vouch(&inside), Err(DirectoryError::Unstable { .. })));
        // A link of theirs leads nowhere, and nothing is made at its end.
        let target = sandbox.path().join("target");
        link(&target, &sandbox.path().join("theirs/link"), NOBODY);
        assert!(own(&sandbox.path().join("theirs/link/x"), 0o755).is_err());
        std::fs::create_dir(&target).unwrap();
        assert!(matches!(own(&sandbox.path().join("theirs/link/x"), 0o755), Err(DirectoryError::Link { .. })));
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
    }

    #[test]
    fn a_plain_path_is_its_own_answer_whether_the_file_exists_or_not() {
        let sandbox = sandbox();
        let path = sandbox.path().join("www.sock");
        assert_eq!(resolve(&path).unwrap(), path);
        fs::File::create(&path).unwrap().write_all(b"x").unwrap();
        let located = locate(&path).unwrap();
        assert_eq!((located.path(), located.name.as_os_str()), (path, OsStr::new("www.sock")));
        assert!(located.directory.is_stable(), "/tmp is sticky and the directory below belongs to us");
    }

    #[test]
    fn links_of_root_are_resolved_wherever_they_stand() {
        let sandbox = sandbox();
        let real = directory(sandbox.path().join("real"), 0, 0o755);
        link("real", &sandbox.path().join("relative"), 0);
        link(&real, &sandbox.path().join("absolute"), 0);
        for way in ["relative", "absolute", "absolute/../relative", "./real/."] {
            assert_eq!(resolve(&sandbox.path().join(way).join("www.sock")).unwrap(), real.join("www.sock"), "{way}");
        }
        let homes = directory(sandbox.path().join("home"), NOBODY, 0o777);
        link(&real, &homes.join("by-root"), 0);
        assert_eq!(resolve(&homes.join("by-root/www.sock")).unwrap(), real.join("www.sock"));
    }

    #[test]
    fn a_link_at_the_end_is_resolved_even_if_it_dangles() {
        let sandbox = sandbox();
        let real = directory(sandbox.path().join("real"), 0, 0o755);
        link("real/www-8.2.sock", &sandbox.path().join("www.sock"), 0);
        assert_eq!(resolve(&sandbox.path().join("www.sock")).unwrap(), real.join("www-8.2.sock"));
    }

    #[test]
    fn a_foreign_link_in_a_directory_of_root_alone_is_followed() {
        let sandbox = sandbox();
        link("/run", &sandbox.path().join("run"), NOBODY);
        assert_eq!(resolve(&sandbox.path().join("run/www.sock")).unwrap(), Path::new("/run/www.sock"));
    }

    #[test]
    fn a_foreign_link_where_others_may_write_is_refused_and_named() {
        let sandbox = sandbox();
        for (name, owner, mode) in [("theirs", NOBODY, 0o755), ("group", 0, 0o775), ("world", 0, 0o757), ("sticky", 0, 0o1777)] {
            let home = directory(sandbox.path().join(name), owner, mode);
            link("/etc", &home.join("run"), NOBODY);
            link("/etc/passwd", &home.join("www.sock"), NOBODY);
            for path in [home.join("run/www.sock"), home.join("www.sock")] {
                let error = resolve(&path).unwrap_err();
                assert!(matches!(&error, DirectoryError::Link { owner: NOBODY, link, .. } if link.starts_with(&home)), "{error}");
            }
        }
    }

    #[test]
    fn what_is_unusable_says_why() {
        let sandbox = sandbox();
        fs::write(sandbox.path().join("file"), "").unwrap();
        link("loop", &sandbox.path().join("loop"), 0);
        assert!(matches!(resolve(Path::new("run/www.sock")), Err(DirectoryError::Relative { .. })));
        assert!(matches!(resolve(Path::new("/")), Err(DirectoryError::NoName { .. })));
        assert!(matches!(resolve(&sandbox.path().join("..")), Err(DirectoryError::NoName { .. })));
        assert!(matches!(resolve(&sandbox.path().join("loop")), Err(DirectoryError::Loop { .. })));
        assert!(matches!(resolve(&sandbox.path().join("file/www.sock")), Err(DirectoryError::NotDirectory { .. })));
        let missing = resolve(&sandbox.path().join("missing/www.sock")).unwrap_err();
        assert!(missing.is_missing(), "{missing}");
        assert!(missing.to_string().contains("/missing'"), "{missing}");
        assert!(matches!(SafeDirectory::open(&sandbox.path().join("file")), Err(DirectoryError::NotDirectory { .. })));
    }

    #[test]
    fn a_directory_below_one_that_others_may_write_is_not_stable() {
        let sandbox = sandbox();
        let home = directory(sandbox.path().join("home"), NOBODY, 0o755);
        let run = directory(home.join("run"), 0, 0o755);
        assert!(SafeDirectory::open(&home).unwrap().is_stable());
        assert!(!SafeDirectory::open(&run).unwrap().is_stable());
    }
}
