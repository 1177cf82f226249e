//! Programs that a test starts, each in a session of its own, and what `/proc` tells of processes.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::{eventually, within};

/// 3 s: nginx and php-fpm leave within milliseconds when told to by SIGTERM.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// A program under way. Ends with its whole group when dropped.
pub(crate) struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts `program` in a session of its own, its output in the file `log`. It is told to leave if the test's thread dies.
    pub(crate) fn start(program: &Path, arguments: &[&str], environment: &[(&str, &str)], log: &Path) -> Self {
        let output = File::options().create(true).append(true).open(log).expect("a log file in the test's directory");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "setsid", "--"]).arg(program).args(arguments);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("a second handle")).stderr(output);
        let name = program.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let child = command.spawn().unwrap_or_else(|e| panic!("start {}: {e}", program.display()));
        Self { child, name, log: log.to_owned() }
    }

    /// Gives its pid, which is its group's and session's number too.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends a signal to the program alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap_or_else(|e| panic!("{signal} to {} {}: {e}", self.name, self.pid()));
    }

    /// Gives how it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child")
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("{} {} ends; its output:\n{}", self.name, self.pid(), self.output());
        eventually(deadline, &what, || self.ended())
    }

    /// Waits for its end and gives its exit code, or the negative number of the signal that ended it.
    #[track_caller]
    pub(crate) fn exit_code(&mut self, deadline: Duration) -> i32 {
        let status = self.wait(deadline);
        status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
    }

    /// Gives what it wrote so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.pid());
        let gone = |child: &mut Child| child.try_wait().ok().flatten();
        if gone(&mut self.child).is_none() && kill(group, Signal::SIGTERM).is_ok() {
            within(LEAVE_WITHIN, || gone(&mut self.child));
        }
        // Workers outlive a killed master (P15), so the group is ended even when its leader is gone.
        if killpg(group, Signal::SIGKILL).is_ok() {
            within(LEAVE_WITHIN, || gone(&mut self.child));
        }
    }
}

/// How a program that was waited for ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; the negative number of the signal that ended it.
    pub(crate) code: i32,
    /// What it wrote to standard output.
    pub(crate) out: String,
    /// What it wrote to standard error.
    pub(crate) err: String,
}

/// Runs a program to its end.
#[track_caller]
pub(crate) fn run(program: &Path, arguments: &[&str], directory: &Path, deadline: Duration) -> Ended {
    let scratch = tempfile::tempdir_in(directory).expect("a directory for output");
    let (out, err) = (scratch.path().join("out"), scratch.path().join("err"));
    let create = |path: &Path| File::create(path).expect("a file for output");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(create(&out)).stderr(create(&err));
    let mut child = command.spawn().unwrap_or_else(|e| panic!("start {}: {e}", program.display()));
    let status = within(deadline, || child.try_wait().expect("our own child"));
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let (out, err) = (read(&out), read(&err));
    let Some(status) = status else {
        child.kill().ok();
        within(LEAVE_WITHIN, || child.try_wait().ok().flatten());
        panic!("{} {arguments:?} not done within {deadline:?}:\n{out}{err}", program.display());
    };
    Ended { code: status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)), out, err }
}

/// Tells whether a process is there and no zombie.
pub(crate) fn alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// What `/proc/PID/stat` says, as far as tests ask.
#[derive(Debug, Clone)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// CPU time used, in ticks.
    pub(crate) ticks: u64,
}

/// Reads a process's stat; nothing when it is gone.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        pid,
        state: fields.first()?.chars().next()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        ticks: ticks(11)? + ticks(12)?,
    })
}

/// Gives every process there is.
pub(crate) fn processes() -> Vec<Stat> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Gives the living children of a process, in the order of their numbers.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let mut found: Vec<i32> = processes().iter().filter(|p| p.parent == parent && !matches!(p.state, 'Z' | 'X')).map(|p| p.pid).collect();
    found.sort_unstable();
    found
}
