//! Reloading NGINX and seeing that it did.
//!
//! A signal has no answer, and a master that refuses its configuration only logs it. What shows that it took it is a new set of
//! workers: a child that was not there before, and none of the former ones serving any more. Source: nginx `ngx_process_cycle.c`.

use std::time::{Duration, Instant};

use super::processes::{Doing, Process, Worker, workers};

/// How long a reload may take. Half a minute: NGINX reads its configuration before it starts workers, with host names to resolve.
pub const RELOAD_TIME: Duration = Duration::from_secs(30);

/// A reload takes about 150 ms on a small configuration.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Old workers leave when their last connection ends: seconds to hours.
const LOOK_FOR_OLD_EVERY: Duration = Duration::from_millis(100);

/// What came of a reload.
#[derive(Debug)]
pub(super) enum Reload {
    /// New workers serve.
    Taken {
        /// The workers that served before, until they have left.
        old: Vec<Process>,
    },
    /// It did not; why.
    NotTaken(String),
}

/// Tells the master to read its configuration again and waits until new workers serve.
pub(super) async fn reload(master: Process, time: Duration) -> Reload {
    let before = look(master).await;
    let old: Vec<Process> = before.iter().map(|worker| worker.process).collect();
    if let Err(errno) = master.signal(rustix::process::Signal::HUP) {
        return Reload::NotTaken(format!("signal NGINX's master {}: {errno}", master.pid));
    }
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        let now = look(master).await;
        let new_serves = now.iter().any(|worker| !old.contains(&worker.process) && worker.doing == Doing::Serving);
        let old_serves = now.iter().any(|worker| old.contains(&worker.process) && worker.doing == Doing::Serving);
        if new_serves && !old_serves {
            return Reload::Taken { old };
        }
        if !master.is_running() {
            return Reload::NotTaken(format!("NGINX's master {} ended", master.pid));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Reload::NotTaken(format!("NGINX's master {} started no new workers within {time:?}: its error log says why", master.pid))
}

/// Looks through /proc on another thread: on a host with thousands of processes it takes milliseconds.
async fn look(master: Process) -> Vec<Worker> {
    tokio::task::spawn_blocking(move || workers(master)).await.unwrap_or_default()
}

/// Waits until the workers have left, at most for `time`; gives those that have not. Sockets that only they know may go then.
///
/// # Cancel safety
/// Safe: it only looks.
pub async fn wait_old_workers(old: &[Process], time: Duration) -> Vec<Process> {
    let deadline = Instant::now() + time;
    let mut left: Vec<Process> = old.to_vec();
    loop {
        left.retain(|process| process.is_running());
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        tokio::time::sleep(LOOK_FOR_OLD_EVERY).await;
    }
}
