//! Being a php-fpm with the listening sockets of a supervisor.
//!
//! systemd starts a unit's program by itself, so a php-fpm unit cannot be handed sockets (P1) from outside. For one start its program
//! is this: it fetches the sockets from the supervisor that gives them back and becomes the unit's own command, in the same
//! process, so that systemd sees the main process it expects.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::Named;
use crate::runtime::launch::socket_variables;
use crate::runtime::state::{self, StateError};
use crate::runtime::takeover::Process;

/// The file's name below the runtime directory.
pub(in crate::runtime) const INHERIT: &str = "inherit.json";

/// What is inherited.
#[derive(Debug, Serialize, Deserialize)]
struct Inheritance {
    /// The supervisor.
    pid: i32,
    /// When it was started.
    start_ticks: u64,
    /// What to become.
    command: Vec<String>,
    /// The sockets: the texts php-fpm knows them by, and the supervisor's descriptors.
    sockets: Vec<(String, i32)>,
}

/// Says why the command was not become.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The file is not there or not what it should be.
    #[error("read what to inherit from {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The supervisor has gone, or its sockets cannot be had.
    #[error("fetch socket {key} from supervisor {pid}")]
    Socket {
        /// Which socket.
        key: String,
        /// Whose.
        pid: i32,
        /// Why not.
        source: io::Error,
    },
    /// The command cannot be started.
    #[error("start {program}")]
    Start {
        /// The command's program.
        program: String,
        /// Why not.
        source: io::Error,
    },
}

/// Writes what a unit's php-fpm inherits from this process.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, command: Vec<String>, names: &[Named]) -> Result<(), StateError> {
    let error = |source| StateError { step: "write", path: path.to_owned(), source };
    let this = Process::of(nix::unistd::getpid()).map_err(error)?;
    let sockets = names.iter().map(|(key, fd)| (key.clone(), fd.as_raw_fd())).collect();
    state::write(path, &Inheritance { pid: this.pid.as_raw(), start_ticks: this.start_ticks, command, sockets })
}

/// Becomes the command that `path` names, with the sockets it names. Comes back only with a failure.
pub fn inherit(path: &Path) -> InheritError {
    match fetch(path) {
        Ok((inheritance, sockets)) => {
            let (program, arguments) =
                inheritance.command.split_first().map_or((String::new(), &[] as &[String]), |(first, rest)| (first.clone(), rest));
            let names: Vec<(String, i32)> = sockets.iter().map(|(key, fd)| (key.clone(), fd.as_raw_fd())).collect();
            let source = std::process::Command::new(&program).args(arguments).envs(socket_variables(&names)).exec();
            InheritError::Start { program, source }
        }
        Err(error) => error,
    }
}

fn fetch(path: &Path) -> Result<(Inheritance, Vec<(String, OwnedFd)>), InheritError> {
    let failed = |source| InheritError::File { path: path.to_owned(), source };
    let inheritance: Option<Inheritance> = state::read(path).map_err(|error| failed(error.source))?;
    let inheritance = inheritance.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let pid = inheritance.pid;
    let lost = |key: &str| {
        let key = key.to_owned();
        move |source| InheritError::Socket { key, pid, source }
    };
    let supervisor = Process::of(Pid::from_raw(pid)).ok().filter(|process| process.start_ticks == inheritance.start_ticks);
    let mut sockets = Vec::new();
    for (key, number) in &inheritance.sockets {
        let supervisor = supervisor.as_ref().ok_or(io::ErrorKind::NotFound).map_err(io::Error::from).map_err(lost(key))?;
        let socket = supervisor.fetch(*number).map_err(lost(key))?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).map_err(io::Error::from).map_err(lost(key))?;
        sockets.push((key.clone(), socket));
    }
    Ok((inheritance, sockets))
}
