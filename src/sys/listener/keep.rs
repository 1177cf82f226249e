//! A second link of each public socket file, in a private directory.
//!
//! A unix socket whose last name is gone lives on and can be reached by nobody: it cannot be linked again. So each file that
//! stands at a public path has a second name where nobody else removes it, and the path can be made from that.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::file::{FileId, clean_up, look};
use super::publish::{Expected, PublishError, lend};
use crate::sys::directory::{DirectoryError, SafeDirectory, own};

/// The private directory, and whose second links are in it.
#[derive(Debug)]
pub struct Keep {
    directory: PathBuf,
    kept: BTreeSet<FileId>,
    /// Files that cannot be linked there: on another filesystem.
    unfit: BTreeSet<FileId>,
}

impl Keep {
    /// Keeps links in `directory`, which is made when it is needed; those that an earlier supervisor left are known again.
    pub fn at(directory: PathBuf) -> Self {
        let names = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        let kept = names.filter_map(|entry| id_of(entry.file_name().to_str()?)).collect();
        Self { directory, kept, unfit: BTreeSet::new() }
    }

    /// Tells whether there should be a second link of `file`.
    pub fn has(&self, file: FileId) -> bool {
        self.kept.contains(&file)
    }

    /// Keeps exactly the files at these public paths. One that cannot be linked, most likely because it is on another
    /// filesystem, is left out and not tried again.
    ///
    /// # Errors
    /// The private directory cannot be made or used.
    pub fn set(&mut self, public: &[(&Path, FileId)]) -> Result<(), DirectoryError> {
        let wanted: BTreeSet<FileId> = public.iter().map(|(_, file)| *file).collect();
        self.unfit.retain(|file| wanted.contains(file));
        let new: Vec<&(&Path, FileId)> =
            public.iter().filter(|(_, file)| !self.kept.contains(file) && !self.unfit.contains(file)).collect();
        if new.is_empty() && self.kept.is_subset(&wanted) {
            return Ok(());
        }
        let private = own(&self.directory, 0o700)?;
        for file in std::mem::take(&mut self.kept) {
            if wanted.contains(&file) {
                self.kept.insert(file);
            } else {
                clean_up(&private, &name_of(file));
            }
        }
        let mut directories = BTreeMap::new();
        for (path, file) in new {
            let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let directory = directories.entry(above).or_insert_with(|| SafeDirectory::open(above).ok());
            let Some(directory) = directory else { continue };
            match link((directory, name), &private, *file) {
                Ok(()) => drop(self.kept.insert(*file)),
                // It may be gone for the moment; then it is tried again when it is back.
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    tracing::debug!(path = %path.display(), error = %io::Error::from(errno), "second link was not made");
                    self.unfit.insert(*file);
                }
            }
        }
        Ok(())
    }

    /// Makes `public` again from the second link of `file`.
    ///
    /// # Errors
    /// When there is no second link any more, the directory of `public` is missing or not safe, or something else than a
    /// stale socket stands there.
    pub fn restore(&self, file: FileId, public: &Path) -> Result<(), PublishError> {
        lend(&self.directory.join(name_of(file)), file, public, Expected::Free)
    }

    /// Forgets what is kept, so that it is linked anew: the directory is gone.
    pub fn forget(&mut self) {
        self.kept.clear();
        self.unfit.clear();
    }

    /// Removes all links and the directory.
    pub fn clear(&mut self) {
        self.forget();
        match std::fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(directory = %self.directory.display(), error = %error, "second links were not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Links without following, and looks at what was linked: the name may have meant another file by then.
fn link(from: (&SafeDirectory, &std::ffi::OsStr), private: &SafeDirectory, file: FileId) -> Result<(), Errno> {
    let name = name_of(file);
    match rustix::fs::linkat(&from.0.fd, from.1, &private.fd, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    if look(private, &name).is_ok_and(|found| found.is_some_and(|entry| entry.id == file)) {
        return Ok(());
    }
    clean_up(private, &name);
    Err(Errno::NOENT)
}

fn name_of(file: FileId) -> OsString {
    OsString::from(format!("{:x}-{:x}", file.device, file.inode))
}

fn id_of(name: &str) -> Option<FileId> {
    let (device, inode) = name.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(FileId { device: number(device)?, inode: number(inode)? })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::model::listen::Access;
    use crate::sys::listener::{Listener, bind_unix, file_id, publish};

    fn published(path: &Path) -> (Listener, FileId) {
        let listener = bind_unix(path, ".1", &Access { mode: 0o666, ..Access::default() }, 5).unwrap();
        publish(&listener, path, Expected::Free).unwrap();
        let file = listener.file_id().unwrap();
        (listener, file)
    }

    #[test]
    fn a_path_that_was_removed_leads_to_the_same_socket_again() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let (path, kept) = (sandbox.path().join("www.sock"), sandbox.path().join("kept"));
        let (_listener, file) = published(&path);
        let mut keep = Keep::at(kept.clone());
        keep.set(&[(&path, file)]).unwrap();
        assert!(keep.has(file) && Keep::at(kept.clone()).has(file));
        std::fs::remove_file(&path).unwrap();
        keep.restore(file, &path).unwrap();
        assert_eq!(file_id(&path).unwrap(), Some(file));
        UnixStream::connect(&path).unwrap();
        // Again, and as often as wanted.
        std::fs::remove_file(&path).unwrap();
        Keep::at(kept.clone()).restore(file, &path).unwrap();
        UnixStream::connect(&path).unwrap();
        keep.set(&[]).unwrap();
        assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 0);
        keep.clear();
        assert!(!kept.exists());
    }

    #[test]
    fn what_somebody_else_put_there_stays_but_a_stale_socket_goes() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let path = sandbox.path().join("www.sock");
        let (_listener, file) = published(&path);
        let mut keep = Keep::at(sandbox.path().join("kept"));
        keep.set(&[(&path, file)]).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(keep.restore(file, &path), Err(PublishError::NotSocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        std::fs::remove_file(&path).unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        assert!(matches!(keep.restore(file, &path), Err(PublishError::Live { .. })));
        drop(theirs);
        keep.restore(file, &path).unwrap();
        assert_eq!(file_id(&path).unwrap(), Some(file));
    }

    #[test]
    fn a_file_that_took_the_name_is_not_kept_for_ours() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let path = sandbox.path().join("www.sock");
        let (_listener, file) = published(&path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        let mut keep = Keep::at(sandbox.path().join("kept"));
        keep.set(&[(&path, file)]).unwrap();
        assert!(!keep.has(file));
        assert_eq!(std::fs::read_dir(sandbox.path().join("kept")).unwrap().count(), 0);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(keep.restore(file, &path), Err(PublishError::Vanished { .. })));
    }
}
