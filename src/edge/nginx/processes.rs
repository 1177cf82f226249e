//! The running NGINX as /proc shows it: which process is the master, which are its workers.
//!
//! A pid file may be old and its number somebody else's by now, so a master is believed only if its title and program say so.
//! Source: proc(5); nginx `ngx_process_cycle.c` for the titles.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A process that cannot be mistaken for a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
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

const MASTER_TITLE: &[u8] = b"nginx: master process";
const WORKER_TITLE: &[u8] = b"nginx: worker process";
const LEAVING_TITLE: &[u8] = b"nginx: worker process is shutting down";

impl Process {
    /// Finds a process that runs now.
    pub(super) fn find(pid: u32) -> Option<Self> {
        Some(Self { pid, started_ticks: Stat::read(pid)?.started_ticks })
    }

    /// Tells whether it still runs; one that has ended and is not yet collected does not.
    pub(super) fn is_running(self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.started_ticks == self.started_ticks && !stat.ended)
    }

    /// Sends a signal to exactly this process.
    pub(super) fn signal(self, signal: rustix::process::Signal) -> rustix::io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
        let pidfd: OwnedFd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        // Only now: before the handle was open, the pid could have passed to another process.
        if !self.is_running() {
            return Err(rustix::io::Errno::SRCH);
        }
        rustix::process::pidfd_send_signal(&pidfd, signal)
    }
}

struct Stat {
    ended: bool,
    parent: u32,
    started_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name stands in parentheses and may hold anything, parentheses too.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let ended = matches!(fields.first().copied(), Some("Z" | "X"));
        Some(Self { ended, parent: fields.get(1)?.parse().ok()?, started_ticks: fields.get(19)?.parse().ok()? })
    }
}

/// Gives the running master that the pid file names; `None` when it names none.
pub(super) fn master(pid_file: &Path, binary: &Path) -> Option<Process> {
    let pid: u32 = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let process = Process::find(pid).filter(|process| process.is_running())?;
    let titled = fs::read(format!("/proc/{pid}/cmdline")).ok()?.starts_with(MASTER_TITLE);
    (titled && runs(pid, binary)).then_some(process)
}

/// Tells whether the process runs the binary, or one of its name: after an upgrade of the package the old file is gone.
fn runs(pid: u32, binary: &Path) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let program = program.as_os_str().as_bytes();
    let program = Path::new(std::ffi::OsStr::from_bytes(program.strip_suffix(b" (deleted)").unwrap_or(program)));
    let binary = fs::canonicalize(binary).unwrap_or_else(|_| binary.to_owned());
    program == binary || program.file_name() == binary.file_name()
}

/// Gives the workers of a master, those on their way out too.
pub(super) fn workers(master: Process) -> Vec<Worker> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut workers: Vec<Worker> = pids.filter_map(|pid| worker(master, pid)).collect();
    workers.sort_by_key(|worker| (worker.process.started_ticks, worker.process.pid));
    workers
}

fn worker(master: Process, pid: u32) -> Option<Worker> {
    let stat = Stat::read(pid).filter(|stat| stat.parent == master.pid && !stat.ended)?;
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    if !title.starts_with(WORKER_TITLE) {
        return None;
    }
    let doing = if title.starts_with(LEAVING_TITLE) { Doing::Leaving } else { Doing::Serving };
    Some(Worker { process: Process { pid, started_ticks: stat.started_ticks }, doing })
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
        let own = Process::find(std::process::id()).unwrap();
        assert!(own.is_running());
        assert!(!Process { started_ticks: own.started_ticks + 1, ..own }.is_running());
        assert!(age_seconds(own).unwrap() < 3600.0);
        assert_eq!(Process::find(u32::MAX), None);
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
