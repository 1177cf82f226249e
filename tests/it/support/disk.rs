//! A small disk of the test's own, to be filled and made read-only. Root may mount one; a container needs `CAP_SYS_ADMIN` for it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A mounted tmpfs. Stop what uses it before it is dropped.
pub(crate) struct Disk {
    path: PathBuf,
    read_only: bool,
}

impl Disk {
    /// Mounts one of `kib` KiB at `path`, which is made.
    #[track_caller]
    pub(crate) fn mount(path: &Path, kib: u32) -> Self {
        std::fs::create_dir_all(path).expect("a directory to mount on");
        let options = format!("size={kib}k,mode=755");
        mount(Some("polyfpm-test"), path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap_or_else(|e| panic!("mount a tmpfs at {} (the tests need CAP_SYS_ADMIN): {e}", path.display()));
        Self { path: path.to_owned(), read_only: false }
    }

    /// Fills it to the last page.
    pub(crate) fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.filler()).expect("a file on our own disk");
        while file.write_all(&[b'x'; 4096]).is_ok() {}
        while file.write_all(b"x").is_ok() {}
    }

    /// Fills it up to so many pages.
    pub(crate) fn fill_but(&self, pages: u64) {
        self.fill();
        let file = File::options().write(true).open(self.filler()).expect("our own file");
        let length = file.metadata().expect("our own file").len();
        file.set_len(length - pages * 4096).expect("our own file");
    }

    /// Takes everything out that [`Disk::fill`] put in.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("our own file");
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Makes it read-only for whoever opens anything from now on, as a remount does where nobody has a file open for writing.
    pub(crate) fn forbid_writing(&mut self) {
        let flags = |flags| mount(Some(&self.path), &self.path, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>);
        flags(MsFlags::empty()).and_then(|()| flags(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY)).expect("a read-only mount on top");
        self.read_only = true;
    }

    /// Makes it writable again.
    pub(crate) fn allow_writing(&mut self) {
        umount2(&self.path, MntFlags::MNT_DETACH).expect("our own mount");
        self.read_only = false;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for _ in 0..=u32::from(self.read_only) {
            umount2(&self.path, MntFlags::MNT_DETACH).ok();
        }
    }
}
