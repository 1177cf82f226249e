//! A private directory for the files of one run of the binary.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Says why there is no such directory or no file in it.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}", path.display())]
pub struct ScratchError {
    /// What was tried.
    pub(super) step: &'static str,
    /// On which path.
    pub(super) path: PathBuf,
    /// Why it failed.
    pub(super) source: io::Error,
}

/// A directory only we may enter, removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one under the directory for temporary files.
    pub(super) fn new() -> Result<Self, ScratchError> {
        let template = std::env::temp_dir().join("polyfpm-XXXXXX");
        let error = |errno: nix::errno::Errno| ScratchError { step: "make", path: template.clone(), source: errno.into() };
        Ok(Self { path: nix::unistd::mkdtemp(&template).map_err(error)? })
    }

    /// Gives its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a new file in it.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, ScratchError> {
        let path = self.path.join(name);
        let error = |source| ScratchError { step: "write", path: path.clone(), source };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(error)?;
        file.write_all(content).map_err(error)?;
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
