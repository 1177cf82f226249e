//! The steps of a take-over, and those of them that take time: tasks beside the loop.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::foreign::{Foreign, Process, Way};
use crate::sys::proc::Proc;
use crate::sys::sock_diag;

/// How often a task looks.
const LOOK: Duration = Duration::from_millis(20);

/// How long a process may take to be stopped or killed: no time, unless it sleeps in the kernel.
const SIGNAL_TIME: Duration = Duration::from_secs(10);

/// How often workers are told to finish: one that has only just been forked does not hear it yet.
const REPEAT: Duration = Duration::from_secs(1);

/// One step. Those before [`Step::Kill`] can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Copies of the sockets are taken, or new ones bound beside them.
    Fetch,
    /// Our shards start on them.
    Start,
    /// The unit will not start the master again.
    Disarm,
    /// Our sockets take the paths.
    Rename,
    /// The master is stopped, so that it starts no workers and removes no paths.
    Hold,
    /// Its workers finish what they have.
    Drain,
    /// The master is killed.
    Kill,
    /// What is left of it is put in order.
    Settle,
}

impl Step {
    /// Gives the steps of a take-over in order.
    pub(super) fn all(has_unit: bool, way: Way) -> Vec<Self> {
        let every = [Self::Fetch, Self::Start, Self::Disarm, Self::Rename, Self::Hold, Self::Drain, Self::Kill, Self::Settle];
        let applies = |step: &Self| match step {
            Self::Disarm => has_unit,
            Self::Rename => way == Way::Rename,
            Self::Fetch | Self::Start | Self::Hold | Self::Drain | Self::Kill | Self::Settle => true,
        };
        every.into_iter().filter(applies).collect()
    }

    /// Gives its word.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Start => "start",
            Self::Disarm => "disarm",
            Self::Rename => "rename",
            Self::Hold => "hold",
            Self::Drain => "drain",
            Self::Kill => "kill",
            Self::Settle => "settle",
        }
    }
}

/// Waits until nobody waits at sockets that lost their paths, and no client uses a connection to them again.
pub(super) async fn queues_empty(inodes: Vec<u64>, kept: Duration, patience: Duration) -> Result<(), String> {
    let end = Instant::now() + patience;
    let mut empty = 0;
    while empty < 2 && Instant::now() < end {
        tokio::time::sleep(LOOK).await;
        let waits = sock_diag::unix_queues(&inodes).is_ok_and(|queues| queues.values().any(|queue| queue.now > 0));
        empty = if waits { 0 } else { empty + 1 };
    }
    tokio::time::sleep(kept.min(patience)).await;
    if empty < 2 { Err(format!("its queues were not empty within {patience:?}")) } else { Ok(()) }
}

/// Sees to it that the unit does not start the master again.
pub(super) async fn disarm(foreign: Rc<Foreign>) -> Result<(), String> {
    let Some(unit) = &foreign.unit else { return Ok(()) };
    unit.disarm().await.map_err(|error| crate::runtime::chain(&error))
}

/// Takes [`disarm`] back.
pub(super) async fn rearm(foreign: Rc<Foreign>) -> Result<(), String> {
    let Some(unit) = &foreign.unit else { return Ok(()) };
    unit.rearm().await.map_err(|error| crate::runtime::chain(&error))
}

/// Stops the master.
pub(super) async fn hold(foreign: Rc<Foreign>) -> Result<(), String> {
    let process = &foreign.process;
    process.signal(Signal::SIGSTOP).map_err(|error| format!("stop process {}: {error}", process.pid))?;
    let stopped = || Proc::default().stat(process.pid).is_ok_and(|stat| matches!(stat.state, 'T' | 't'));
    if until(SIGNAL_TIME, stopped).await { Ok(()) } else { Err(format!("process {} does not stop", process.pid)) }
}

/// Lets the workers of the stopped master finish what they have; those that take longer than `patience` are ended.
pub(super) async fn drain(foreign: Rc<Foreign>, patience: Duration) -> Result<(), String> {
    let process = &foreign.process;
    if finished(process, Signal::SIGQUIT, patience).await {
        return Ok(());
    }
    tracing::warn!(pid = process.pid.as_raw(), "workers of the other master did not finish in time");
    if finished(process, Signal::SIGTERM, SIGNAL_TIME / 2).await || finished(process, Signal::SIGKILL, SIGNAL_TIME).await {
        return Ok(());
    }
    Err(format!("workers of process {} do not end", process.pid))
}

/// Signals the living workers until none is left, or `time` is over.
async fn finished(process: &Process, signal: Signal, time: Duration) -> bool {
    let end = Instant::now() + time;
    let mut told = None;
    loop {
        if !process.lives() {
            return true;
        }
        let workers = living_workers(process.pid);
        if workers.is_empty() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        if told.is_none_or(|at: Instant| at.elapsed() >= REPEAT) {
            told = Some(Instant::now());
            for worker in workers {
                // The master cannot collect it while it is stopped, so the pid is still its own.
                if let Err(error) = nix::sys::signal::kill(worker, signal) {
                    tracing::debug!(pid = worker.as_raw(), error = %error, "worker heard no signal");
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn living_workers(master: Pid) -> Vec<Pid> {
    let proc = Proc::default();
    let lives = |pid: &Pid| proc.stat(*pid).is_ok_and(|stat| !stat.is_zombie());
    proc.children_of(master).unwrap_or_default().into_iter().filter(lives).collect()
}

/// Kills the master.
pub(super) async fn kill(foreign: Rc<Foreign>) -> Result<(), String> {
    let process = &foreign.process;
    match process.signal(Signal::SIGKILL) {
        Ok(()) => {}
        Err(_) if !process.lives() => return Ok(()),
        Err(error) => return Err(format!("kill process {}: {error}", process.pid)),
    }
    if until(SIGNAL_TIME, || !process.lives()).await { Ok(()) } else { Err(format!("process {} does not end", process.pid)) }
}

/// Puts in order what the master leaves: its unit's failure and enablement, links its unit removes.
pub(super) async fn settle(foreign: Rc<Foreign>, links: Vec<(PathBuf, PathBuf)>) -> Result<(), String> {
    let mut faults = Vec::new();
    if let Some(unit) = &foreign.unit {
        // Its own clean-up runs when systemd sees the end; until then a reset would be too early.
        if !unit.ended(SIGNAL_TIME).await {
            faults.push(format!("{} has not ended", unit.name()));
        }
        let outcomes = [unit.retire().await, unit.rearm().await];
        faults.extend(outcomes.into_iter().filter_map(Result::err).map(|error| crate::runtime::chain(&error)));
    }
    for (link, target) in links {
        if std::fs::symlink_metadata(&link).is_err()
            && let Err(error) = std::os::unix::fs::symlink(&target, &link)
        {
            faults.push(format!("link {} to {}: {error}", link.display(), target.display()));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

async fn until(time: Duration, is: impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while !is() {
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(LOOK / 4).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_take_over_has_the_steps_it_needs() {
        assert!(!Step::all(false, Way::Same).iter().any(|step| matches!(step, Step::Disarm | Step::Rename)));
        let all = Step::all(true, Way::Rename);
        let at = |step: Step| all.iter().position(|one| *one == step);
        assert!(at(Step::Start) < at(Step::Disarm) && at(Step::Disarm) < at(Step::Hold), "nothing is touched before ours serve");
        assert!(at(Step::Rename) < at(Step::Hold) && at(Step::Drain) < at(Step::Kill), "they serve until nobody reaches them");
    }
}
