//! Starting a process with everything set before exec.
//!
//! Owns the way from a [`Command`] to a running program: a clean environment, outputs, session, affinity, limits,
//! priority and exactly the descriptors named. It does not own the pid that comes out: only `sys::children` calls
//! `spawn`, because whoever waits for any child would otherwise steal the exit of this one.
//!
//! What a php-fpm master has at exec, all its workers inherit (P17), so nothing is set afterwards from outside. The
//! standard library forks, connects the outputs and reports a failed exec; one closure does the rest in the child. That
//! closure runs between fork and exec of a program with threads: it may only make system calls on values prepared before
//! the fork. The library's error says the errno and not which step failed, so the closure also writes the step's number
//! to a pipe of its own.
//!
//! Sources: fork(2), signal-safety(7), sched_setaffinity(2), close_range(2).
#![expect(unsafe_code, reason = "a closure between fork and exec, and two calls that nix does not offer in the form needed")]

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::{Pid, pipe2, read};

use crate::model::cpus::CpuSet;
use child::{AFFINITY, CGROUP, ChildSide, DIRECTORY, KEEP, LIMIT, NICE, OOM_SCORE, SESSION};

pub(super) use child::kernel_mask;
pub use nix::sys::resource::Resource;

mod child;
#[cfg(test)]
mod tests;

/// The search path of a child when we have none ourselves: the administrator's programs first, as systemd's default.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is taken over from our own environment, and the value used where it is not set there.
const BASE_ENVIRONMENT: [(&str, Option<&str>); 4] =
    [("PATH", Some(DEFAULT_PATH)), ("LANG", Some("C.UTF-8")), ("LC_ALL", None), ("TZ", None)];

/// Where an output of the program goes.
#[derive(Debug, Clone)]
pub enum Output {
    /// To `/dev/null`.
    Null,
    /// Where ours goes.
    Inherit,
    /// To this file, socket or pipe.
    File(Arc<OwnedFd>),
    /// To a pipe whose other end is in [`Spawned`].
    Pipe,
}

impl Output {
    /// Sends the output to `file`.
    pub fn file(file: impl Into<OwnedFd>) -> Self {
        Self::File(Arc::new(file.into()))
    }

    fn stdio(&self) -> io::Result<Stdio> {
        Ok(match self {
            Self::Null => Stdio::null(),
            Self::Inherit => Stdio::inherit(),
            Self::File(file) => Stdio::from(file.try_clone()?),
            Self::Pipe => Stdio::piped(),
        })
    }
}

/// The session the program runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// Ours.
    Same,
    /// A new one, with a process group of its own whose number is the program's pid.
    New,
}

/// A soft and a hard limit, in the unit of its resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What applies.
    pub soft: u64,
    /// Up to where the program may raise it.
    pub hard: u64,
}

impl Limit {
    /// No limit.
    pub const UNLIMITED: u64 = libc::RLIM_INFINITY;

    /// Sets the soft and the hard limit to `value`.
    pub const fn both(value: u64) -> Self {
        Self { soft: value, hard: value }
    }
}

/// A program to start. Its input is always `/dev/null`, its environment only what is given here, its umask 022.
#[derive(Debug, Clone)]
pub struct Command {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    directory: PathBuf,
    stdout: Output,
    stderr: Output,
    session: Session,
    keep: Vec<Arc<OwnedFd>>,
    cpus: Option<CpuSet>,
    limits: Vec<(Resource, Limit)>,
    nice: Option<i32>,
    oom_score_adj: Option<i32>,
    cgroup: Option<PathBuf>,
}

impl Command {
    /// Describes `program` (an absolute path) without arguments, in `/`, in our session, its outputs dropped, with [`base_environment`].
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: base_environment(),
            directory: PathBuf::from("/"),
            stdout: Output::Null,
            stderr: Output::Null,
            session: Session::Same,
            keep: Vec::new(),
            cpus: None,
            limits: Vec::new(),
            nice: None,
            oom_score_adj: None,
            cgroup: None,
        }
    }

    /// Gives the program's path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets one variable beside those already there.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.env.retain(|(known, _)| *known != name);
        self.env.push((name, value));
        self
    }

    /// Makes `variables` the whole environment.
    #[must_use]
    pub fn environment(mut self, variables: Vec<(OsString, OsString)>) -> Self {
        self.env = variables;
        self
    }

    /// Starts the program in `directory` instead of `/`.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sends what the program prints to `output`.
    #[must_use]
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Sends the program's messages to `output`.
    #[must_use]
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// Chooses the session.
    #[must_use]
    pub fn session(mut self, session: Session) -> Self {
        self.session = session;
        self
    }

    /// Leaves `fd` open in the program under the number it has here.
    #[must_use]
    pub fn keep(mut self, fd: Arc<OwnedFd>) -> Self {
        self.keep.push(fd);
        self
    }

    /// Binds the program to `cpus`.
    #[must_use]
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Limits `resource`.
    #[must_use]
    pub fn limit(mut self, resource: Resource, limit: Limit) -> Self {
        self.limits.push((resource, limit));
        self
    }

    /// Sets the nice value, -20 to 19.
    #[must_use]
    pub fn nice(mut self, nice: i32) -> Self {
        self.nice = Some(nice);
        self
    }

    /// Sets how readily the kernel kills the program when memory runs out, -1000 to 1000.
    #[must_use]
    pub fn oom_score_adj(mut self, adjustment: i32) -> Self {
        self.oom_score_adj = Some(adjustment);
        self
    }

    /// Starts the program in the control group (v2) with this directory.
    #[must_use]
    pub fn cgroup(mut self, group: impl Into<PathBuf>) -> Self {
        self.cgroup = Some(group.into());
        self
    }
}

/// Gives the variables every program gets: the search path and the language, ours where set, and our time zone.
pub fn base_environment() -> Vec<(OsString, OsString)> {
    BASE_ENVIRONMENT
        .iter()
        .filter_map(|(name, default)| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty()).or_else(|| default.map(OsString::from))?;
            Some((OsString::from(name), value))
        })
        .collect()
}

/// The step of a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnStage {
    /// Making ready what the child needs.
    Prepare,
    /// Making the process and connecting its outputs.
    Fork,
    /// Starting a new session.
    Session,
    /// Entering the control group.
    Cgroup,
    /// Setting the out-of-memory score.
    OomScore,
    /// Binding to the CPUs.
    Affinity,
    /// Setting this limit.
    Limit(Resource),
    /// Setting the nice value.
    Nice,
    /// Changing to the directory.
    Directory,
    /// Keeping the descriptors open.
    Keep,
    /// Executing the program.
    Exec,
}

impl fmt::Display for SpawnStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "prepare the start",
            Self::Fork => "make a process",
            Self::Session => "start a session",
            Self::Cgroup => "enter the control group",
            Self::OomScore => "set the out-of-memory score",
            Self::Affinity => "set CPU affinity",
            Self::Limit(resource) => return write!(f, "set {resource:?}"),
            Self::Nice => "set the nice value",
            Self::Directory => "change to its directory",
            Self::Keep => "keep descriptors open",
            Self::Exec => "execute",
        })
    }
}

/// Says why a program was not started.
#[derive(Debug, thiserror::Error)]
#[error("start {}: {stage}", .program.display())]
pub struct SpawnError {
    /// The program.
    pub program: PathBuf,
    /// The step that failed.
    pub stage: SpawnStage,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// A program that has been executed.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid. Whoever spawns must wait for it.
    pub pid: Pid,
    /// Our end of its output, where [`Output::Pipe`] was asked for.
    pub stdout: Option<OwnedFd>,
    /// Our end of its messages, where [`Output::Pipe`] was asked for.
    pub stderr: Option<OwnedFd>,
}

/// Starts the program and returns when it has been executed, which takes some milliseconds.
///
/// # Errors
/// The step that failed, with its errno. No process is left then.
pub(super) fn spawn(command: &Command) -> Result<Spawned, SpawnError> {
    let failed = |stage, source| SpawnError { program: command.program.clone(), stage, source };
    let unprepared = |source| failed(SpawnStage::Prepare, source);
    let (report, report_to) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(|e| unprepared(e.into()))?;
    let child = ChildSide::new(command, report_to).map_err(unprepared)?;
    let mut process = std::process::Command::new(&command.program);
    process.args(&command.args).env_clear().envs(command.env.iter().map(|(name, value)| (name, value)));
    process.stdin(Stdio::null());
    process.stdout(command.stdout.stdio().map_err(unprepared)?).stderr(command.stderr.stdio().map_err(unprepared)?);
    // SAFETY: the closure only makes async-signal-safe system calls on values prepared here; it neither allocates nor locks.
    unsafe { process.pre_exec(move || child.run()) };

    // A handler of ours must not run in the child, where it would write into the pipe it shares with us.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(|e| unprepared(e.into()))?;
    let started = process.spawn();
    mask.thread_set_mask().map_err(|e| unprepared(e.into()))?;
    // The closure holds the pipe's other end.
    drop(process);
    match started {
        Ok(mut started) => {
            let pid = Pid::from_raw(started.id().cast_signed());
            Ok(Spawned { pid, stdout: started.stdout.take().map(OwnedFd::from), stderr: started.stderr.take().map(OwnedFd::from) })
        }
        Err(source) => Err(failed(reported_stage(&report, command), source)),
    }
}

fn reported_stage(report: &OwnedFd, command: &Command) -> SpawnStage {
    let mut message = [0; 2];
    match read(report, &mut message) {
        Ok(2) => {}
        Ok(_) | Err(_) => return SpawnStage::Fork,
    }
    let [step, index] = message;
    match step {
        SESSION => SpawnStage::Session,
        CGROUP => SpawnStage::Cgroup,
        OOM_SCORE => SpawnStage::OomScore,
        AFFINITY => SpawnStage::Affinity,
        LIMIT => command.limits.get(usize::from(index)).map_or(SpawnStage::Fork, |(resource, _)| SpawnStage::Limit(*resource)),
        NICE => SpawnStage::Nice,
        DIRECTORY => SpawnStage::Directory,
        KEEP => SpawnStage::Keep,
        _ => SpawnStage::Exec,
    }
}
