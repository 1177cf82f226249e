//! The running NGINX as /proc shows it: which process is the master, which are its workers.
//!
//! A pid file may be old and its number somebody else's by now, so a master is believed only if its title and program say so.
//! Source: proc(5); nginx `ngx_process_cycle.c` for the titles.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::unistd::Pid;

use crate::sys::proc::Proc;

/// A process that cannot be mistaken for a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its pid.
    pub pid: Pid,
    /// When it started, in clock ticks since boot.
    pub started_ticks: u64,
}

/// Whether a worker takes new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It does.
    Serving,
    /// It was told to leave and finishes what it has.
    Leaving,
}

/// A worker of the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) process: Process,
    pub(super) doing: Doing,
}

const MASTER_TITLE: &str = "nginx: master process";
const WORKER_TITLE: &str = "nginx: worker process";
const LEAVING_TITLE: &str = "nginx: worker process is shutting down";

impl Process {
    /// Finds a process that runs now; one that has ended and is not yet collected does not.
    pub(super) fn find(pid: Pid) -> Option<Self> {
        let stat = Proc::default().stat(pid).ok().filter(|stat| !stat.is_zombie())?;
        Some(Self { pid, started_ticks: stat.start_ticks })
    }

    /// Tells whether it still runs.
    pub(super) fn is_running(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Sends a signal to exactly this process.
    pub(super) fn signal(self, signal: rustix::process::Signal) -> rustix::io::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw()).ok_or(rustix::io::Errno::SRCH)?;
        let pidfd: OwnedFd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        // Only now: before the handle was open, the pid could have passed to another process.
        if !self.is_running() {
            return Err(rustix::io::Errno::SRCH);
        }
        rustix::process::pidfd_send_signal(&pidfd, signal)
    }
}

/// Gives the running master that the pid file names; `None` when it names none.
pub(super) fn master(pid_file: &Path, binary: &Path) -> Option<Process> {
    let pid: i32 = fs::read_to_string(pid_file).ok()?.trim().parse().ok().filter(|pid| *pid > 0)?;
    let process = Process::find(Pid::from_raw(pid))?;
    let titled = Proc::default().title(process.pid).ok()?.starts_with(MASTER_TITLE);
    (titled && runs(process.pid, binary)).then_some(process)
}

/// Tells whether the process runs the binary, or one of its name: after an upgrade of the package the old file is gone.
fn runs(pid: Pid, binary: &Path) -> bool {
    let Ok(program) = Proc::default().exe(pid) else { return false };
    let binary = fs::canonicalize(binary).unwrap_or_else(|_| binary.to_owned());
    program.path == binary || program.path.file_name() == binary.file_name()
}

/// Gives the workers of a master, those on their way out too.
pub(super) fn workers(master: Process) -> Vec<Worker> {
    let children = Proc::default().children_of(master.pid).unwrap_or_default();
    let mut workers: Vec<Worker> = children.into_iter().filter_map(worker).collect();
    workers.sort_by_key(|worker| (worker.process.started_ticks, worker.process.pid));
    workers
}

/// Gives the workers of the binary that `master` does not command and that nobody will tell of a new configuration: those of
/// the old master while NGINX is upgraded in place, and those that outlived a master that was killed. They serve on with what they once read.
pub(super) fn workers_beside(master: Option<Process>, pid_file: &Path, binary: &Path) -> Vec<Process> {
    let proc = Proc::default();
    let mut old_pid_file = pid_file.as_os_str().to_owned();
    old_pid_file.push(".oldbin");
    let old = self::master(Path::new(&old_pid_file), binary).map(|old| old.pid);
    let forgotten = |pid: &Pid| {
        let Ok(parent) = proc.stat(*pid).map(|stat| stat.parent) else { return false };
        let commanded = || proc.title(parent).is_ok_and(|title| title.starts_with(MASTER_TITLE));
        Some(parent) != master.map(|master| master.pid) && (Some(parent) == old || !commanded())
    };
    let found = proc.pids().unwrap_or_default().into_iter().filter_map(worker).map(|worker| worker.process);
    found.filter(|process| runs(process.pid, binary) && forgotten(&process.pid)).collect()
}

fn worker(pid: Pid) -> Option<Worker> {
    let process = Process::find(pid)?;
    let title = Proc::default().title(pid).ok()?;
    if !title.starts_with(WORKER_TITLE) {
        return None;
    }
    let doing = if title.starts_with(LEAVING_TITLE) { Doing::Leaving } else { Doing::Serving };
    Some(Worker { process, doing })
}

/// Gives for how many seconds a process has been running.
pub(super) fn age_seconds(process: Process) -> Option<f64> {
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    #[expect(clippy::cast_precision_loss, reason = "a tick is 10 ms: 52 bits of them are a million years")]
    let started = process.started_ticks as f64 / ticks_per_second as f64;
    Some(uptime - started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let own = Process::find(Pid::this()).unwrap();
        assert!(own.is_running());
        assert!(!Process { started_ticks: own.started_ticks + 1, ..own }.is_running());
        assert!(age_seconds(own).unwrap() < 3600.0);
        assert_eq!(Process::find(Pid::from_raw(i32::MAX)), None);
    }

    #[test]
    fn a_pid_file_that_names_something_else_names_no_master() {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        for content in [String::new(), "x".to_owned(), "4294967295".to_owned(), format!("{}\n", std::process::id())] {
            fs::write(&pid_file, &content).unwrap();
            assert_eq!(master(&pid_file, Path::new("/usr/sbin/nginx")), None, "{content}");
        }
        assert_eq!(master(&directory.path().join("none"), Path::new("/usr/sbin/nginx")), None);
    }
}
