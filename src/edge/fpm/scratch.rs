//! A private directory for the files of one run of the binary.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A directory only we may enter, removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one under the directory for temporary files.
    pub(super) fn new() -> io::Result<Self> {
        let template = std::env::temp_dir().join("polyfpm-XXXXXX");
        Ok(Self { path: nix::unistd::mkdtemp(&template)? })
    }

    /// Gives its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a new file in it.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a private directory could not be removed");
        }
    }
}
