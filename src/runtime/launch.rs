//! Starting a master: its directory, its sockets, its configuration, its process.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Permissions};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::unistd::Pid;

use super::blueprint::{Blueprint, Notifies, StatusPoint, StderrChoice};
use super::events::Event;
use super::fault;
use super::master::Master;
use super::sockets::{Binding, SocketError, SocketSet};
use super::state::{MasterState, StateError};
use super::supervisor::Supervisor;
use crate::core::shard;
use crate::edge::fastcgi;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName};
use crate::model::listen::ListenerPlan;
use crate::sys::children::{Child, Exit};
use crate::sys::directory::Batch;
use crate::sys::notify::{NotifyError, NotifySocket};
use crate::sys::proc::Proc;
use crate::sys::spawn::{Command, Output, Session, SpawnError, SpawnStage};

/// How many sockets one `FPM_SOCKETS` variable names. Source: php-src fpm_sockets.c writes 128 a variable and reads 256 variables (P7).
const SOCKETS_PER_VARIABLE: usize = 128;

/// How often a status socket is asked before it answers, where readiness is not told: php-fpm is up in 20–50 ms (P30).
const READY_POLL: Duration = Duration::from_millis(20);

/// How often at the least a group is looked at until nothing of it is left.
const LONGEST_GROUP_PAUSE: Duration = Duration::from_millis(160);

/// How long READY may fail to come before the status socket is asked instead: it comes 20–50 ms after the start (P30), unless
/// something between php-fpm and us, such as a security policy, swallows it.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// How long a master that can tell nothing of its readiness is given to fail: a php-fpm that refuses its configuration
/// does so within 50 ms.
const SILENT_READY: Duration = Duration::from_millis(500);

/// Says why a master was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// Its directory or a file in it could not be made.
    #[error("{step} {}", path.display())]
    File {
        /// What was tried.
        step: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A listener could not be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its notify socket could not be bound.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// The process could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// What a later supervisor needs to adopt it could not be written.
    #[error(transparent)]
    State(#[from] StateError),
}

struct StatusSocket {
    pool: PoolName,
    alias: String,
    path: PathBuf,
    fd: Arc<OwnedFd>,
}

impl Supervisor {
    /// Starts a master and everything that follows it.
    ///
    /// # Errors
    /// The step that failed; nothing of the master is alive then, and its directory may be left for a look.
    pub(super) fn launch(&mut self, id: &MasterId, sockets: shard::Sockets, blueprint: &Rc<Blueprint>) -> Result<u32, LaunchError> {
        let directory = self.master_directory(id);
        make_directory(&directory)?;
        fault::point("directory made");
        let set = self.acquire_all(id, sockets, blueprint)?;
        self.start_on(id, set, blueprint)
    }

    /// Starts a master on these listeners. Its directory is made.
    ///
    /// # Errors
    /// The step that failed; the listeners nobody else has are closed then.
    pub(super) fn start_on(&mut self, id: &MasterId, set: SocketSet, blueprint: &Rc<Blueprint>) -> Result<u32, LaunchError> {
        let directory = self.master_directory(id);
        let birth = self.fleet.shard(&id.shard).and_then(shard::Shard::birth);
        let rescue = birth.is_none_or(|birth| birth.generation != id.generation);
        if set.iter().any(|held| matches!(held.plan.endpoint, Endpoint::Tcp(_))) {
            // The order in which listeners joined their groups is known to nobody else.
            self.write_state();
        }
        // Before the process: one that runs must be known, wherever we end.
        let state = |pid, set: &SocketSet| MasterState { rescue, ..MasterState::of(id, pid, set, blueprint) };
        let serves = self.fleet.shard(&id.shard).is_some_and(|shard| shard.serving().is_some());
        if let Err(error) = self.write_master(&directory, &state(None, &set))
            && serves
        {
            // One that could not be adopted takes nothing over from one that can. Where nobody serves, it is better than nobody.
            self.sockets.release(set);
            return Err(error.into());
        }
        let launched = SystemTime::now();
        match self.start_process(id, &directory, &set, blueprint) {
            Ok((child, status, notify)) => {
                let pid = child.pid();
                let tasks = self.follow(id, child, notify, (&status, blueprint));
                let private = status.iter().filter_map(|socket| crate::sys::listener::inode_of(&socket.fd).ok()).collect();
                let status = status.into_iter().map(|socket| (socket.pool, socket.path)).collect();
                let recorded = self.write_master(&directory, &MasterState { private, ..state(Some(pid), &set) });
                self.note_written(directory.join("master.json"), recorded);
                let blueprint = Rc::clone(blueprint);
                let pools = Arc::new(blueprint.plan.pools().cloned().collect());
                let pid_number = u32::try_from(pid.as_raw()).unwrap_or_default();
                let master = Master {
                    id: id.clone(),
                    blueprint,
                    pools,
                    sockets: set,
                    pid: Some(pid),
                    process: None,
                    alive: true,
                    rescue,
                    reopen_when_ready: false,
                    launched,
                    directory,
                    status,
                    tasks,
                };
                self.masters.insert(id.clone(), master);
                Ok(pid_number)
            }
            Err(error) => {
                self.sockets.release(set);
                Err(error)
            }
        }
    }

    fn acquire_all(&mut self, id: &MasterId, sockets: shard::Sockets, blueprint: &Blueprint) -> Result<SocketSet, SocketError> {
        let binding = match sockets {
            shard::Sockets::Held => Binding::AtOnce,
            shard::Sockets::New => Binding::Beside,
            shard::Sockets::Together => Binding::Together,
        };
        let held = self.held.get(&id.shard).cloned().unwrap_or_default();
        let mut set = SocketSet::new();
        let _batch = Batch::begin();
        for placement in &blueprint.plan.placements {
            match self.sockets.acquire(id, &placement.listener, &held, binding) {
                Ok(socket) => {
                    fault::point("listener bound");
                    set.push(socket);
                }
                Err(error) => {
                    self.sockets.release(set);
                    return Err(error);
                }
            }
        }
        if binding == Binding::AtOnce {
            self.held.insert(id.shard.clone(), set.clone());
            self.point_addresses(&set)?;
        }
        Ok(set)
    }

    fn start_process(
        &mut self,
        id: &MasterId,
        directory: &Path,
        set: &SocketSet,
        blueprint: &Blueprint,
    ) -> Result<(Child, Vec<StatusSocket>, Option<NotifySocket>), LaunchError> {
        let status = bind_status(directory, blueprint)?;
        let notify = match blueprint.notifies {
            Notifies::Yes => Some(NotifySocket::bind(directory.join("notify"))?),
            Notifies::No => None,
        };
        let config = directory.join("php-fpm.conf");
        write_private(&config, &blueprint.config)?;
        fault::point("configuration written");
        let errors = Arc::new(OwnedFd::from(open_errors(&directory.join("errors.log"))?));
        let names: Vec<(String, i32)> = set
            .iter()
            .map(|held| (socket_key(&held.plan), held.listener.fd.as_raw_fd()))
            .chain(status.iter().map(|socket| (socket.alias.clone(), socket.fd.as_raw_fd())))
            .collect();
        let mut command = Command::new(&blueprint.binary)
            .args(["--nodaemonize".into(), "--fpm-config".into(), OsString::from(&config)])
            .args(blueprint.arguments.iter().cloned())
            .environment(master_environment(blueprint, &names, notify.as_ref()))
            .session(Session::New);
        command = match blueprint.stderr {
            // Errors of PHP's own start, such as a preload script that is missing, go to standard output.
            StderrChoice::File => command.stdout(Output::File(Arc::clone(&errors))).stderr(Output::File(errors)),
            StderrChoice::Inherit => command.stdout(Output::Inherit).stderr(Output::Inherit),
        };
        for fd in set.iter().map(|held| &held.listener.fd).chain(status.iter().map(|socket| &socket.fd)) {
            command = command.keep(Arc::clone(fd));
        }
        if let Some(cpus) = &blueprint.plan.cpus {
            command = command.cpus(cpus.clone());
        }
        let command = super::limits::applied(command, &self.settings.limits);
        let child = self.spawn_in_group(id, &command)?;
        fault::point("spawned");
        tracing::trace!(shard = %id.shard, gen = id.generation.0, sockets = set.len(), "master spawned");
        Ok((child, status, notify))
    }

    /// Starts a master in its control group, or outside where it cannot enter it.
    fn spawn_in_group(&mut self, id: &MasterId, command: &Command) -> Result<Child, SpawnError> {
        let Some(group) = self.make_group(id) else { return self.children.spawn(command) };
        match self.children.spawn(&command.clone().cgroup(group)) {
            Err(error) if error.stage == SpawnStage::Cgroup => {
                self.note_outside(&error);
                self.children.spawn(command)
            }
            started => started,
        }
    }

    /// Starts the tasks that report a master's readiness, heartbeat and end.
    fn follow(
        &self,
        id: &MasterId,
        child: Child,
        notify: Option<NotifySocket>,
        (status, blueprint): (&[StatusSocket], &Blueprint),
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let exit = tokio::task::spawn_local(report_exit(id.clone(), child, self.events.clone(), self.children.clone()));
        // The exit is awaited even when the record of the master is dropped: somebody has to hear of it.
        drop(exit);
        let ask = status.first().map(|socket| socket.path.clone()).zip(blueprint.status.first().cloned());
        match (notify, ask) {
            (Some(notify), ask) => {
                let told = Rc::new(Cell::new(false));
                let hearing = tokio::task::spawn_local(hear(id.clone(), notify, Rc::clone(&told), self.events.clone()));
                let asking = ask.map(|ask| tokio::task::spawn_local(ask_if_untold(id.clone(), ask, told, self.events.clone())));
                std::iter::once(hearing).chain(asking).collect()
            }
            (None, ask) => vec![tokio::task::spawn_local(poll_ready(id.clone(), ask, self.events.clone()))],
        }
    }

    /// Starts the tasks that report an adopted master's heartbeat and end.
    pub(super) fn follow_adopted(&self, id: &MasterId, child: Child, notify: Option<NotifySocket>) -> Vec<tokio::task::JoinHandle<()>> {
        drop(tokio::task::spawn_local(report_exit(id.clone(), child, self.events.clone(), self.children.clone())));
        let told = Rc::new(Cell::new(false));
        notify.map(|notify| tokio::task::spawn_local(hear(id.clone(), notify, told, self.events.clone()))).into_iter().collect()
    }

    /// Starts the task that reports the end of a group whose master is dead.
    pub(super) fn follow_group(&self, id: &MasterId, group: Pid) {
        drop(tokio::task::spawn_local(report_group(id.clone(), group, self.events.clone(), self.children.clone())));
    }

    pub(super) fn master_directory(&self, id: &MasterId) -> PathBuf {
        self.settings.runtime_directory.join("m").join(format!("{}.{}.{}", id.shard.group, id.shard.index, id.generation))
    }
}

async fn report_exit(id: MasterId, mut child: Child, events: super::Events, children: crate::sys::children::Children) {
    let pid = child.pid();
    let exit = child.exit().await;
    super::tell(&events, Event::Exited { master: id.clone(), exit }).await;
    report_group(id, pid, events, children).await;
}

async fn report_group(id: MasterId, pid: Pid, events: super::Events, children: crate::sys::children::Children) {
    let mut pause = Duration::from_millis(5);
    // Of a group that is not our child's the dead are collected by PID 1, which may take its time.
    while children.group_exists(pid) && (pause < LONGEST_GROUP_PAUSE || !Proc::default().group(pid).is_empty()) {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_GROUP_PAUSE);
    }
    super::tell(&events, Event::GroupGone { master: id }).await;
}

async fn hear(id: MasterId, notify: NotifySocket, told: Rc<Cell<bool>>, events: super::Events) {
    loop {
        let message = match notify.receive().await {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(shard = %id.shard, gen = id.generation.0, error = %error, "notify socket failed");
                return;
            }
        };
        for line in message.text.lines() {
            if line == "READY=1" && !told.replace(true) {
                super::tell(&events, Event::Ready { master: id.clone() }).await;
            } else if let Some(text) = line.strip_prefix("STATUS=") {
                super::tell(&events, Event::Heartbeat { master: id.clone(), text: text.to_owned() }).await;
            }
        }
    }
}

/// Readiness of a php-fpm that could tell it and does not.
async fn ask_if_untold(id: MasterId, ask: (PathBuf, StatusPoint), told: Rc<Cell<bool>>, events: super::Events) {
    tokio::time::sleep(TOLD_WITHIN).await;
    if !told.get() {
        tracing::debug!(shard = %id.shard, gen = id.generation.0, "readiness was not told; the status socket is asked");
        poll_ready(id, Some(ask), events).await;
    }
}

/// Readiness of a php-fpm that does not tell it: its private status socket answers (P30, P31), or, before 8.0, it lives on.
async fn poll_ready(id: MasterId, ask: Option<(PathBuf, StatusPoint)>, events: super::Events) {
    if let Some((path, point)) = ask {
        let target = Endpoint::Unix(path);
        while fastcgi::ping(&target, &point.ping_path, &point.ping_response, Duration::from_secs(1)).await.is_err() {
            tokio::time::sleep(READY_POLL).await;
        }
    } else {
        tokio::time::sleep(SILENT_READY).await;
    }
    super::tell(&events, Event::Ready { master: id }).await;
}

/// Gives how a master ended, in words.
pub(super) fn exit_words(exit: Exit) -> String {
    match exit {
        Exit::Code(78) => "exited with 78: php-fpm refused its configuration or a listener (P16)".to_owned(),
        Exit::Code(code) => format!("exited with {code}"),
        Exit::Signal { signal, .. } => format!("was ended by signal {signal}"),
        Exit::Unknown => "ended".to_owned(),
    }
}

pub(super) fn make_directory(path: &Path) -> Result<(), LaunchError> {
    let error = |step| move |source| LaunchError::File { step, path: path.to_owned(), source };
    if path.exists() {
        std::fs::remove_dir_all(path).map_err(error("clear"))?;
    }
    DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(error("make the directory"))
}

pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), LaunchError> {
    let error = |source| LaunchError::File { step: "write", path: path.to_owned(), source };
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(error)?;
    std::io::Write::write_all(&mut file, bytes).map_err(error)
}

fn open_errors(path: &Path) -> Result<File, LaunchError> {
    let error = |source| LaunchError::File { step: "open", path: path.to_owned(), source };
    File::options().append(true).create(true).mode(0o600).open(path).map_err(error)
}

/// Binds the private status sockets: 0600 in a directory only root enters, since they run any script (P28).
fn bind_status(directory: &Path, blueprint: &Blueprint) -> Result<Vec<StatusSocket>, LaunchError> {
    let mut sockets = Vec::new();
    for (number, point) in blueprint.status.iter().enumerate() {
        let path = directory.join(format!("s{number}"));
        let error = |source| LaunchError::File { step: "bind the status socket", path: path.clone(), source };
        let listener = UnixListener::bind(&path).map_err(error)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(error)?;
        let fd = Arc::new(OwnedFd::from(listener));
        sockets.push(StatusSocket { pool: point.pool.clone(), alias: point.alias.clone(), path, fd });
    }
    Ok(sockets)
}

/// Gives the text by which php-fpm finds an inherited socket: its `listen`, but IPv6 addresses without brackets (P8).
fn socket_key(plan: &ListenerPlan) -> String {
    match plan.endpoint {
        Endpoint::Tcp(SocketAddr::V6(address)) => format!("{}:{}", address.ip(), address.port()),
        Endpoint::Tcp(SocketAddr::V4(_)) | Endpoint::Unix(_) => plan.alias.clone(),
    }
}

/// Gives the variables that tell a master of its sockets.
pub(super) fn socket_variables(names: &[(String, i32)]) -> impl Iterator<Item = (OsString, OsString)> + '_ {
    names.chunks(SOCKETS_PER_VARIABLE).enumerate().map(|(number, chunk)| {
        let name = if number == 0 { "FPM_SOCKETS".to_owned() } else { format!("FPM_SOCKETS_{number}") };
        let value: Vec<String> = chunk.iter().map(|(alias, fd)| format!("{alias}={fd}")).collect();
        (name.into(), value.join(",").into())
    })
}

fn master_environment(blueprint: &Blueprint, names: &[(String, i32)], notify: Option<&NotifySocket>) -> Vec<(OsString, OsString)> {
    let mut environment = blueprint.environment.clone();
    environment.extend(socket_variables(names));
    if let Some(notify) = notify {
        environment.push(("NOTIFY_SOCKET".into(), notify.path().into()));
    }
    environment
}
