//! Running a program to its end, with a time-out and a bound on what it may print.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::{Child, Children, Exit, signal_group};
use crate::sys::spawn::{Command, Output, Session, SpawnError};

/// How long outputs are still read after the program has ended: a process it left behind may hold them open for ever.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// How long a killed program may take to go. Only one stuck in the kernel takes longer, and nothing helps against that.
const KILLED: Duration = Duration::from_secs(5);

/// A program that has run to its end.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// What it printed, up to the limit.
    pub stdout: Vec<u8>,
    /// Its messages, up to the limit.
    pub stderr: Vec<u8>,
    /// Whether a part of either is missing: beyond the limit, or not yet printed by a process that outlived the program.
    pub truncated: bool,
}

/// Says why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started.
    #[error("run a program")]
    Spawn(#[from] SpawnError),
    /// Its outputs could not be read.
    #[error("read the output of {}", .program.display())]
    Output {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It did not end in time and was killed with all its group.
    #[error("{} did not end within {after:?}", .program.display())]
    TimedOut {
        /// The program.
        program: PathBuf,
        /// The time it had.
        after: Duration,
    },
}

impl Children {
    /// Runs a program in a session of its own and collects its outputs, each up to `limit_bytes`; what is beyond is read and
    /// dropped, so that the program never waits for us. The command's own choice of session and outputs does not count.
    ///
    /// # Errors
    /// When it cannot be started, or does not end within `time`: then it and all its group are killed.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program and all its group.
    pub async fn run(&self, command: Command, time: Duration, limit_bytes: usize) -> Result<Finished, RunError> {
        let command = command.session(Session::New).stdout(Output::Pipe).stderr(Output::Pipe);
        let program = command.program().to_owned();
        let output_error = |source| RunError::Output { program: program.clone(), source };
        let mut child = self.spawn(&command)?;
        let mut guard = GroupGuard { group: child.pid(), armed: true };
        let mut stdout = Collected::new(child.take_stdout(), limit_bytes).map_err(output_error)?;
        let mut stderr = Collected::new(child.take_stderr(), limit_bytes).map_err(output_error)?;

        let Ok(exit) = timeout(time, ended(&mut child, &mut stdout, &mut stderr)).await else {
            guard.kill();
            // The answer is the same if it does not go in time; the reaper collects it later.
            let _late = timeout(KILLED, child.exit()).await;
            return Err(RunError::TimedOut { program, after: time });
        };
        guard.armed = false;
        let exit = exit.map_err(output_error)?;
        let truncated = stdout.incomplete() || stderr.incomplete();
        Ok(Finished { exit, stdout: stdout.kept, stderr: stderr.kept, truncated })
    }
}

/// Waits for the exit and the ends of both outputs, the latter not for ever.
async fn ended(child: &mut Child, stdout: &mut Collected, stderr: &mut Collected) -> io::Result<Exit> {
    let read = async { tokio::try_join!(stdout.read_all(), stderr.read_all()) };
    let mut read = std::pin::pin!(read);
    let exit = tokio::select! {
        exit = child.exit() => exit,
        done = &mut read => {
            done?;
            return Ok(child.exit().await);
        }
    };
    match timeout(STRAGGLERS, read).await {
        Ok(done) => done.map(|_| exit),
        Err(_) => Ok(exit),
    }
}

/// Kills the group unless told that the program has ended.
struct GroupGuard {
    group: Pid,
    armed: bool,
}

impl GroupGuard {
    fn kill(&mut self) {
        self.armed = false;
        match signal_group(self.group, Some(Signal::SIGKILL)) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::debug!(pid = self.group.as_raw(), error = %errno, "a process group could not be killed"),
        }
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if self.armed {
            self.kill();
        }
    }
}

/// One output, read to its end and kept up to a limit.
struct Collected {
    pipe: Option<pipe::Receiver>,
    kept: Vec<u8>,
    limit_bytes: usize,
    dropped: bool,
}

impl Collected {
    fn new(pipe: Option<OwnedFd>, limit_bytes: usize) -> io::Result<Self> {
        let pipe = pipe.map(pipe::Receiver::from_owned_fd).transpose()?;
        Ok(Self { pipe, kept: Vec::new(), limit_bytes, dropped: false })
    }

    /// Tells whether a part was dropped or its end not reached.
    fn incomplete(&self) -> bool {
        self.dropped || self.pipe.is_some()
    }

    async fn read_all(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut chunk = vec![0; 16 * 1024];
        loop {
            let length = pipe.read(&mut chunk).await?;
            if length == 0 {
                self.pipe = None;
                return Ok(());
            }
            let room = self.limit_bytes.saturating_sub(self.kept.len());
            self.dropped |= length > room;
            self.kept.extend(chunk.iter().take(length.min(room)));
        }
    }
}
