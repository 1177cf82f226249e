//! One owner of every child process: spawning, reaping, running with a time-out.
//!
//! Owns the table of all living children and the only `waitpid` of the program. Nothing else may wait for a process:
//! as subreaper we are also given the orphans of masters that died (P15), whose pids nobody knows, so we must wait for
//! *any* child, and that takes the exit of a child away from whoever else waits for it.
//!
//! A child can end before its pid is in the table. So one mutex is held from before the fork until the pid has been
//! entered, and the reaper holds the same mutex while it collects. A pid in the table is therefore running or a zombie,
//! never a number the kernel has given to someone else: signals are sent under that mutex and only to pids in the table.
//!
//! Exits belong to the process and not to a runtime, so the table is one for the whole program and a thread of its own
//! collects them, woken by SIGCHLD through a socket. [`Children`] is a handle; any number may exist, on any runtime.
//! The thread lives as long as the program.
//!
//! Sources: waitpid(2), `PR_SET_CHILD_SUBREAPER` in prctl(2), pidfd_open(2).
#![expect(unsafe_code, reason = "waitpid by hand: nix fails on a child killed by a realtime signal, after having reaped it")]

mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpgrp};
use tokio::sync::{mpsc, oneshot};

use super::readable::Readable;
use super::spawn::{Command, SpawnError, spawn};

pub use run::{Finished, RunError};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal killed it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether it left a core dump.
        core: bool,
    },
    /// It ended, and its status went to another parent (S8).
    Unknown,
}

impl Exit {
    /// Tells whether it exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    fn from_status(status: libc::c_int) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit {code}"),
            Self::Signal { signal, core } => {
                match Signal::try_from(signal) {
                    Ok(name) => write!(f, "{name}")?,
                    Err(_) => write!(f, "signal {signal}")?,
                }
                f.write_str(if core { " (core dumped)" } else { "" })
            }
            Self::Unknown => f.write_str("unknown exit"),
        }
    }
}

/// Whether processes whose parent died come to us (P15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subreaper {
    /// They come to us.
    Yes,
    /// They go to PID 1 or to another subreaper.
    No,
}

/// A process that came to us because its parent died, and has now ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orphan {
    /// Its pid, free again.
    pub pid: Pid,
    /// How it ended.
    pub exit: Exit,
}

struct Entry {
    /// Tells two children apart that had the same pid one after the other.
    serial: u64,
    exit: oneshot::Sender<Exit>,
}

struct Table {
    reaper_runs: bool,
    last_serial: u64,
    living: BTreeMap<Pid, Entry>,
    orphans: u64,
    orphan_listeners: Vec<mpsc::UnboundedSender<Orphan>>,
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { reaper_runs: false, last_serial: 0, living: BTreeMap::new(), orphans: 0, orphan_listeners: Vec::new() });

fn table() -> MutexGuard<'static, Table> {
    // No operation on the table leaves it half done, so a panic elsewhere does not spoil it.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn enter(&mut self, pid: Pid) -> (u64, oneshot::Receiver<Exit>) {
        self.last_serial += 1;
        let (sender, receiver) = oneshot::channel();
        self.living.insert(pid, Entry { serial: self.last_serial, exit: sender });
        (self.last_serial, receiver)
    }

    /// Collects every child that has ended.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes one int, into a local variable.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            // 0: none has ended. -1: there are no children (ECHILD); WNOHANG is never interrupted.
            if pid <= 0 {
                return;
            }
            self.ended(Pid::from_raw(pid), Exit::from_status(status));
        }
    }

    fn ended(&mut self, pid: Pid, exit: Exit) {
        if let Some(entry) = self.living.remove(&pid) {
            // Nobody may be waiting any more, and that is no failure.
            let _unheard = entry.exit.send(exit);
            return;
        }
        self.orphans += 1;
        self.orphan_listeners.retain(|listener| listener.send(Orphan { pid, exit }).is_ok());
    }
}

/// The way to every child process. Cloning gives another handle to the same children.
#[derive(Debug, Clone)]
pub struct Children(());

impl Children {
    /// Starts collecting exits, once for the whole program.
    ///
    /// # Errors
    /// When the handler of SIGCHLD cannot be installed, the thread not be started, or the kernel refuses a subreaper.
    pub fn start(subreaper: Subreaper) -> io::Result<Self> {
        if subreaper == Subreaper::Yes {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        let mut table = table();
        Self::begin(&mut table)?;
        Ok(Self(()))
    }

    /// Goes on with the children of the program image before this one, which must not have been waited for since: whatever
    /// became of them, their exits are told as if they had been started here. A pid that is no child of ours is left out.
    ///
    /// # Errors
    /// As [`Children::start`].
    pub fn resume(subreaper: Subreaper, pids: &[Pid]) -> io::Result<(Self, Vec<Child>)> {
        if subreaper == Subreaper::Yes {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        let mut table = table();
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        let ours = pids.iter().copied().filter(|pid| waitid(Id::Pid(*pid), flags).is_ok());
        let mut children = Vec::new();
        for pid in ours {
            if !table.living.contains_key(&pid) {
                let (serial, exit) = table.enter(pid);
                children.push(Child { pid, process: Process::Ours { serial, exit }, ended: None, stdout: None, stderr: None });
            }
        }
        Self::begin(&mut table)?;
        Ok((Self(()), children))
    }

    /// Has nobody collected while `act` runs, which is told which pids are to be collected still.
    pub fn while_uncollected<T>(&self, act: impl FnOnce(&BTreeSet<Pid>) -> T) -> T {
        let mut table = table();
        let living = table.living.keys().copied().collect();
        let done = act(&living);
        table.reap();
        done
    }

    fn begin(table: &mut Table) -> io::Result<()> {
        if !table.reaper_runs {
            let (woken, wake) = UnixStream::pair()?;
            signal_hook::low_level::pipe::register(libc::SIGCHLD, wake)?;
            std::thread::Builder::new().name("reaper".to_owned()).spawn(move || reap_for_ever(woken))?;
            table.reaper_runs = true;
            // What ended before the handler was there sends no signal any more.
            table.reap();
        }
        Ok(())
    }

    /// Starts a program. Blocks some milliseconds, until it has been executed.
    ///
    /// # Errors
    /// The step that failed.
    pub fn spawn(&self, command: &Command) -> Result<Child, SpawnError> {
        let mut table = table();
        let spawned = spawn(command)?;
        let (serial, exit) = table.enter(spawned.pid);
        drop(table);
        let process = Process::Ours { serial, exit };
        Ok(Child { pid: spawned.pid, process, ended: None, stdout: spawned.stdout, stderr: spawned.stderr })
    }

    /// Takes responsibility for a running process that this program image did not start: a child from before we executed
    /// ourselves again, or somebody else's process. The caller compares its start time *after* this call, as only now the
    /// pid can no longer pass to another process unseen. A child that was already ended and collected is not found.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; `AlreadyExists` when its exit is awaited elsewhere.
    pub fn adopt(&self, pid: Pid) -> io::Result<Child> {
        let mut table = table();
        if table.living.contains_key(&pid) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        let process = match waitid(Id::Pid(pid), flags) {
            Ok(_) => {
                let (serial, exit) = table.enter(pid);
                // It may have ended before it was entered.
                table.reap();
                Process::Ours { serial, exit }
            }
            Err(Errno::ECHILD) => Process::Foreign(Foreign::open(pid)?),
            Err(errno) => return Err(errno.into()),
        };
        Ok(Child { pid, process, ended: None, stdout: None, stderr: None })
    }

    /// Sends `signal` to a child that has not been collected.
    ///
    /// # Errors
    /// ESRCH when `pid` is no living child of ours; what the kernel says otherwise.
    pub fn signal(&self, pid: Pid, signal: Signal) -> io::Result<()> {
        let table = table();
        if !table.living.contains_key(&pid) {
            return Err(Errno::ESRCH.into());
        }
        Ok(kill(pid, signal)?)
    }

    /// Sends `signal` to every process of the group `group`, that of a session started with `Session::New`. The group may
    /// outlive its leader: the workers of a master that died (P15).
    ///
    /// # Errors
    /// ESRCH when no process is in it; EINVAL for PID 1's group and ours.
    pub fn signal_group(&self, group: Pid, signal: Signal) -> io::Result<()> {
        Ok(signal_group(group, Some(signal))?)
    }

    /// Tells whether any process is in the group, running or not yet collected.
    pub fn group_exists(&self, group: Pid) -> bool {
        matches!(signal_group(group, None), Ok(()) | Err(Errno::EPERM))
    }

    /// Gives how many processes that were not started here have been collected, by any handle.
    pub fn orphans(&self) -> u64 {
        table().orphans
    }

    /// Gives every orphan that is collected from now on, in this whole program.
    pub fn watch_orphans(&self) -> mpsc::UnboundedReceiver<Orphan> {
        let (sender, receiver) = mpsc::unbounded_channel();
        table().orphan_listeners.push(sender);
        receiver
    }
}

fn signal_group(group: Pid, signal: Option<Signal>) -> Result<(), Errno> {
    // 0 and -1 mean our own group and everybody.
    if group.as_raw() <= 1 || group == getpgrp() {
        return Err(Errno::EINVAL);
    }
    killpg(group, signal)
}

fn reap_for_ever(mut woken: UnixStream) {
    // Whoever started us may have blocked the signal; one thread that takes it is enough. The others are for the main thread
    // alone: what it has blocked must wait for it.
    let mut others = SigSet::all();
    others.remove(Signal::SIGCHLD);
    if let Err(errno) = others.thread_set_mask() {
        tracing::debug!(error = %errno, "SIGCHLD could not be unblocked");
    }
    let mut wakes = [0; 64];
    loop {
        match woken.read(&mut wakes) {
            // The handler owns the other end and is never removed.
            Ok(0) => return,
            Ok(_) => table().reap(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[derive(Debug)]
enum Process {
    Ours { serial: u64, exit: oneshot::Receiver<Exit> },
    Foreign(Foreign),
}

/// A process whose exit is not ours to collect: the kernel tells through a pidfd that it has ended, but not how.
#[derive(Debug)]
struct Foreign {
    pidfd: OwnedFd,
}

impl Foreign {
    fn open(pid: Pid) -> io::Result<Self> {
        let pid = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => io::ErrorKind::NotFound.into(),
            other => io::Error::from(other),
        })?;
        Ok(Self { pidfd })
    }

    async fn ended(&self) -> io::Result<()> {
        Readable::new(self.pidfd.try_clone()?)?.wait().await
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let signal = rustix::process::Signal::from_named_raw(signal as i32).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::process::pidfd_send_signal(&self.pidfd, signal)?)
    }
}

/// A process whose exit is awaited. Dropping it leaves the process running; it is collected all the same.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    process: Process,
    ended: Option<Exit>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl Child {
    /// Gives its pid, which is also its group's number when it was started in a session of its own.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Gives our end of its output, once, where a pipe was asked for.
    pub fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.stdout.take()
    }

    /// Gives our end of its messages, once, where a pipe was asked for.
    pub fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.stderr.take()
    }

    /// Waits until it has ended. Later calls give the same again.
    ///
    /// # Cancel safety
    /// Safe: the exit is kept until a call returns it.
    pub async fn exit(&mut self) -> Exit {
        if let Some(exit) = self.ended {
            return exit;
        }
        let exit = match &mut self.process {
            // The sender goes only with the entry, which sends first.
            Process::Ours { exit, .. } => exit.await.unwrap_or(Exit::Unknown),
            Process::Foreign(foreign) => {
                if let Err(error) = foreign.ended().await {
                    tracing::debug!(pid = self.pid.as_raw(), %error, "the end of an adopted process cannot be awaited");
                    std::future::pending::<()>().await;
                }
                Exit::Unknown
            }
        };
        self.ended = Some(exit);
        exit
    }

    /// Sends `signal` to exactly this process.
    ///
    /// # Errors
    /// ESRCH when it has ended and been collected.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.process {
            Process::Foreign(foreign) => foreign.signal(signal),
            Process::Ours { serial, .. } => {
                let table = table();
                let living = table.living.get(&self.pid).is_some_and(|entry| entry.serial == *serial);
                if living { Ok(kill(self.pid, signal)?) } else { Err(Errno::ESRCH.into()) }
            }
        }
    }
}
