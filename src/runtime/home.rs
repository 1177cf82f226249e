//! What keeps an instance to be found: its runtime directory, its lock and its control socket, made again where they were
//! taken away.

use std::os::fd::OwnedFd;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::boot::RunError;
use super::handoff::ControlSocket;
use super::supervisor::Supervisor;
use crate::edge::control::server::{Call, Server};
use crate::model::settings::Settings;
use crate::sys::directory::{make, own};
use crate::sys::listener::{FileId, identity};
use crate::sys::lock::InstanceLock;

/// The lock and the control socket.
#[derive(Debug)]
pub(super) struct Home {
    lock: InstanceLock,
    control: Option<FileId>,
    /// The control socket itself, for the program image that follows this one.
    socket: Option<OwnedFd>,
    calls: mpsc::Sender<Call>,
    /// The tasks that serve control clients: one, and one more for each time the socket was made again.
    serving: Vec<JoinHandle<()>>,
    /// The file at the control socket's path when it could not be made again.
    refused: Option<FileId>,
}

impl Home {
    /// Keeps the lock, and serves what was bound; what clients ask for goes to `calls`.
    pub(super) fn new(lock: InstanceLock, server: Server, calls: mpsc::Sender<Call>, supervisor: &mut Supervisor) -> Self {
        let mut home = Self { lock, control: None, socket: None, calls, serving: Vec::new(), refused: None };
        home.serve(server, supervisor);
        home
    }

    /// Gives the lock and the control socket with its file, for the program image that follows this one.
    pub(super) fn belongings(&self) -> Option<(&InstanceLock, &OwnedFd, FileId)> {
        Some((&self.lock, self.socket.as_ref()?, self.control?))
    }

    fn serve(&mut self, mut server: Server, supervisor: &mut Supervisor) {
        self.control = server.file();
        self.socket = server.descriptor().ok();
        supervisor.gate = server.take_gate();
        self.serving.push(tokio::task::spawn_local(server.serve(self.calls.clone())));
    }

    /// Looks whether everything is in its place, and makes again what is not.
    pub(super) fn keep_up(&mut self, supervisor: &mut Supervisor) {
        let path = &supervisor.settings.runtime_directory.join("lock");
        if !self.lock.is_at(path) {
            self.settle(supervisor);
        }
        let there = identity(&supervisor.settings.control.socket);
        if there == self.control || (there.is_some() && there == self.refused) {
            return;
        }
        match bind_control(supervisor, None) {
            Ok(server) => {
                tracing::warn!(path = %supervisor.settings.control.socket.display(), "control socket was gone and was made again");
                self.serve(server, supervisor);
            }
            Err(error) => {
                self.refused = there;
                tracing::error!(error = %super::chain(&error), "control socket was not made again");
            }
        }
    }

    /// Makes the runtime directory anew, with what a later supervisor needs. Masters whose own files are gone are handed over
    /// (`super::paths`).
    fn settle(&mut self, supervisor: &mut Supervisor) {
        let path = supervisor.settings.runtime_directory.join("lock");
        match make_directories(&supervisor.settings).and_then(|()| InstanceLock::take(&path).map_err(RunError::from)) {
            Ok(lock) => self.lock = lock,
            Err(error) => {
                tracing::error!(error = %super::chain(&error), "runtime directory was not made again");
                return;
            }
        }
        tracing::warn!(path = %supervisor.settings.runtime_directory.display(), "runtime directory was gone and was made again");
        supervisor.paths.begin_anew();
        supervisor.written = None;
        supervisor.snapshot_dirty = true;
        supervisor.write_plan();
    }

    /// Gives the lock back, once control clients have had their last lines.
    pub(super) async fn close(self, most: std::time::Duration) -> InstanceLock {
        let Self { lock, serving, .. } = self;
        let all = async {
            for task in serving {
                // A task that ended badly serves nobody any more.
                task.await.ok();
            }
        };
        if tokio::time::timeout(most, all).await.is_err() {
            tracing::warn!("control clients did not take their last line");
        }
        lock
    }
}

/// Binds the control socket of an instance, or goes on with the one that came.
///
/// # Errors
/// It cannot be had.
pub(super) fn bind_control(supervisor: &Supervisor, came: Option<ControlSocket>) -> Result<Server, RunError> {
    let control = &supervisor.settings.control;
    let published = supervisor.snapshot.subscribe();
    let server = match came {
        Some(came) if came.path == control.socket && identity(&came.path) == Some(came.file) => {
            Server::resume(came.fd, came.path, came.file, published)
        }
        Some(_) | None => Server::bind(control, published),
    };
    server.map_err(|source| RunError::Control { path: control.socket.clone(), source })
}

/// Makes the directories of an instance.
pub(super) fn make_directories(settings: &Settings) -> Result<(), RunError> {
    let directory = &settings.runtime_directory;
    let system = |source| RunError::System {
        what: format!("use the runtime directory {}", directory.display()),
        source: std::io::Error::other(source),
    };
    // Whoever could change what is in it could hand us sockets, locks and state of theirs.
    own(directory, 0o755).map_err(system)?;
    own(&directory.join("m"), 0o700).map_err(system)?;
    // Sockets may be beside those of the pools, where others may write: they are bound without following what stands there.
    make(&settings.listen.directory, 0o755).map_err(system)
}
