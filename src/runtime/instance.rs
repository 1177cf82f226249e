//! What belongs to one instance on this host: its lock, its runtime directory, its limit of open files.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::boot::RunError;
use super::home::make_directories;
use crate::model::settings::Settings;
use crate::sys::lock::{InstanceLock, LockError};
use crate::sys::proc::Proc;

/// How long the kernel may take to end a supervisor that was killed.
const DYING: Duration = Duration::from_secs(3);

/// Removes what was made for the instance, as far as nothing of somebody else's is in it, and gives the lock up.
pub(super) fn leave_instance(lock: InstanceLock, settings: &Settings) {
    let directory = &settings.runtime_directory;
    let emptied = |path: &Path| std::fs::remove_dir(path).is_ok();
    emptied(&directory.join("m"));
    if settings.listen.directory.starts_with(directory) {
        emptied(&settings.listen.directory);
    }
    if let Err(error) = lock.give_up(&directory.join("lock")) {
        tracing::warn!(error = %super::chain(&error), "lock file was not removed");
    }
    emptied(directory);
}

/// Makes the runtime directory and takes the lock in it, or goes on holding it.
pub(super) async fn take_instance(settings: &Settings, held: Option<OwnedFd>) -> Result<InstanceLock, RunError> {
    make_directories(settings)?;
    let path = settings.runtime_directory.join("lock");
    let lock = match held {
        Some(fd) => InstanceLock::inherited(fd, &path)?,
        None => take_lock(&path).await?,
    };
    // A supervisor that was about to leave may have removed them before it gave the lock up.
    make_directories(settings)?;
    Ok(lock)
}

/// Takes the lock. A supervisor that was killed holds it until the kernel has taken it apart: that is waited for.
async fn take_lock(path: &Path) -> Result<InstanceLock, LockError> {
    let end = Instant::now() + DYING;
    loop {
        match InstanceLock::take(path) {
            Err(LockError::Held { pid: Some(pid), .. }) if is_dying(pid) && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}

fn is_dying(pid: nix::unistd::Pid) -> bool {
    Proc::default().stat(pid).map_or(true, |stat| stat.is_zombie() || matches!(stat.state, 'X' | 'x')) || ends_soon(pid)
}

/// Tells whether SIGKILL was sent to a process that has not ended yet.
fn ends_soon(pid: nix::unistd::Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & (1 << 8) != 0)
}
