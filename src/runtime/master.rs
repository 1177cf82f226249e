//! One master process and everything kept for it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::task::JoinHandle;

use super::blueprint::Blueprint;
use super::sockets::SocketSet;
use crate::model::ids::{MasterId, PoolName};
use crate::sys::children::Children;
use crate::sys::pidfd;

/// How much of a master's start-up errors is shown: the last lines name the cause.
const TAIL_BYTES: u64 = 4 * 1024;

/// How large a generation's error file may grow before it is cut: php-fpm logs elsewhere once it runs, so a file of this
/// size is a loop of complaints of which the last ones matter.
pub(super) const ERRORS_LIMIT_BYTES: u64 = 256 * 1024;

/// One generation's master, from its launch until nothing of it is left.
#[derive(Debug)]
pub(super) struct Master {
    /// Which one.
    pub id: MasterId,
    /// What it was made from.
    pub blueprint: Rc<Blueprint>,
    /// The pools it carries.
    pub(super) pools: Arc<Vec<PoolName>>,
    /// Its listeners.
    pub sockets: SocketSet,
    /// Its pid and process group, once started.
    pub pid: Option<Pid>,
    /// The process itself, where it is not our child: an adopted one.
    pub(super) process: Option<pidfd::Held>,
    /// Whether the master process itself is alive.
    pub alive: bool,
    /// Whether it serves only what waits for a shard that is down.
    pub(super) rescue: bool,
    /// Whether it has to reopen its logs once it is ready.
    pub reopen_when_ready: bool,
    /// When it was about to be started.
    pub(super) launched: SystemTime,
    /// Its private directory.
    pub directory: PathBuf,
    /// Its private status sockets: pool and path.
    pub status: Vec<(PoolName, PathBuf)>,
    /// Tasks that end with it.
    pub tasks: Vec<JoinHandle<()>>,
}

impl Master {
    /// Gives the last lines of complaint it wrote to its standard output and error, without php-fpm's time stamps.
    pub(super) fn last_words(&self) -> Vec<String> {
        let text = tail(&self.errors_path()).unwrap_or_default();
        text.lines().map(plain_line).filter(|line| !line.is_empty() && !line.starts_with("NOTICE: ")).collect()
    }

    /// Gives the file of its standard output and error.
    pub(super) fn errors_path(&self) -> PathBuf {
        self.directory.join("errors.log")
    }

    /// Gives the path of the status socket of one of its pools.
    pub(super) fn status_of(&self, pool: &PoolName) -> Option<&Path> {
        self.status.iter().find(|(name, _)| name == pool).map(|(_, path)| path.as_path())
    }

    /// Cuts the error file when it has grown too large. It is opened for appending, so php-fpm goes on at its end.
    pub(super) fn bound_errors(&self) {
        let path = self.errors_path();
        let too_large = std::fs::metadata(&path).is_ok_and(|meta| meta.len() > ERRORS_LIMIT_BYTES);
        if too_large
            && let Ok(file) = File::options().write(true).open(&path)
            && let Err(error) = file.set_len(0)
        {
            tracing::debug!(master = %self.id, error = %error, "error file was not cut");
        }
    }
}

impl Master {
    /// Sends a signal to the master process alone.
    ///
    /// # Errors
    /// ESRCH when it has ended.
    pub(super) fn signal(&self, children: &Children, signal: Signal) -> std::io::Result<()> {
        match (&self.process, self.pid) {
            (Some(process), _) => process.signal(signal),
            (None, Some(pid)) => children.signal(pid, signal),
            (None, None) => Err(std::io::ErrorKind::NotFound.into()),
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `[30-Nov-2026 21:00:00] ERROR: …` without the stamp; `<b>Fatal error</b>: …` without the marks that PHP sets where
/// `html_errors` is on.
fn plain_line(line: &str) -> String {
    let rest = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map_or(line, |(_, rest)| rest);
    let plain = ["<br />", "<b>", "</b>"].iter().fold(rest.to_owned(), |text, mark| text.replace(mark, ""));
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_php_fpm_says_is_told_plainly() {
        for (line, plain) in [
            ("[30-Nov-2026 21:00:00] ERROR: failed to open error_log (/x)", "ERROR: failed to open error_log (/x)"),
            (
                "<b>Fatal error</b>:  Failed opening required 'x' in <b>Unknown</b> on line <b>0</b><br />",
                "Fatal error: Failed opening required 'x' in Unknown on line 0",
            ),
            ("<br />", ""),
        ] {
            assert_eq!(plain_line(line), plain);
        }
    }
}
