//! Adopting masters that outlived the supervisor that started them (design, section 5).
//!
//! Each master's own file says who it is and what it accepts on; the descriptors are fetched from the master itself (P24).
//! Nothing is taken on trust: the start time must be the recorded one, each socket's inode too. Who serves is told by
//! `state.json` and checked against the files at the public paths: a successor whose sockets are there has taken over,
//! whatever the state file had time to say; one that has taken only some of its paths had been proven and takes the rest.
//!
//! A handover that was under way is completed when its successor had taken a path, as it had been proven then, and undone
//! otherwise: the master that served goes on, and the successor leaves.
//!
//! What came with an exec (`handoff`) is used before anything is fetched.
//!
//! What cannot be adopted is never killed blindly: a process is told to finish only when its title names our directory.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::blueprint::Blueprint;
use super::master::Master;
use super::sockets::{Held, SocketSet};
use super::state::{self, HeldState, InstanceState, MasterState, ProcessState, Role, SocketState};
use super::supervisor::Supervisor;
use crate::core::shard::{Adopted, Wanted};
use crate::edge::fpm;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::plan::Plan;
use crate::sys::directory::Batch;
use crate::sys::listener::{FileId, Listener};
use crate::sys::notify::NotifySocket;
use crate::sys::pidfd;
use crate::sys::proc::Proc;

/// How many masters were adopted, how many were dead and had left workers, and how many had to be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AdoptionCount {
    pub(super) adopted: usize,
    pub(super) orphaned: usize,
    pub(super) refused: usize,
}

/// What was found of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It lives and is ours again.
    Master,
    /// It is dead; its workers go on serving.
    Orphans,
    /// Nothing of it lives.
    Nothing,
}

/// Reads the plan an earlier supervisor ran by.
pub(super) fn former_plan(directory: &Path) -> Option<Plan> {
    read_or_warn(&directory.join("plan.json"))
}

fn read_or_warn<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    state::read(path).unwrap_or_else(|error| {
        tracing::warn!(error = %super::chain(&error), "state file was not usable");
        None
    })
}

/// Reads all that an adoption would read, and refuses what an adoption would make shift without.
///
/// # Errors
/// A file cannot be read, is damaged, or was written by a newer version.
pub(super) fn read_everything(root: &Path) -> Result<(), state::StateError> {
    let too_new = |path: PathBuf, v: u32| {
        let source = io::Error::other(format!("it has version {v}, this polyfpm reads up to {}", state::VERSION));
        state::StateError { step: "use", path, source }
    };
    let path = root.join("state.json");
    if let Some(v) = state::version_of(&path)?.filter(|v| *v > state::VERSION) {
        return Err(too_new(path, v));
    }
    state::read::<InstanceState>(&path)?;
    state::read::<Plan>(&root.join("plan.json"))?;
    for directory in directories(&root.join("m")) {
        let path = directory.join("master.json");
        if let Some(v) = state::version_of(&path)?.filter(|v| *v > state::VERSION) {
            return Err(too_new(path, v));
        }
        state::read::<MasterState>(&path)?;
    }
    Ok(())
}

/// Gives the file that a newer version wrote, if one did: its masters are not for this one.
pub(super) fn of_newer_version(root: &Path) -> Option<(PathBuf, u32)> {
    let files = directories(&root.join("m")).into_iter().map(|directory| directory.join("master.json"));
    let mut files = std::iter::once(root.join("state.json")).chain(files);
    files.find_map(|path| state::version_of(&path).ok()?.filter(|v| *v > state::VERSION).map(|v| (path, v)))
}

impl Supervisor {
    /// Takes over every living master of an earlier supervisor. Called before anything is started.
    pub(super) fn adopt_all(&mut self) -> AdoptionCount {
        let root = self.settings.runtime_directory.clone();
        let instance: Option<InstanceState> = read_or_warn(&root.join("state.json")).filter(|state: &InstanceState| {
            let usable = state.v <= state::VERSION && state.boot == state::boot_id();
            if !usable {
                tracing::info!(version = state.v, "state file is of another boot or version");
            }
            usable
        });
        let mut count = AdoptionCount::default();
        for directory in directories(&root.join("m")) {
            match self.adopt_directory(&directory) {
                Ok(Found::Master) => count.adopted += 1,
                Ok(Found::Orphans) => count.orphaned += 1,
                Ok(Found::Nothing) => remove(&directory),
                Err(error) => {
                    count.refused += 1;
                    tracing::error!(directory = %directory.display(), error = %error, "master was not adopted");
                }
            }
        }
        self.dismiss_strays(&root.join("m"));
        self.share_recalled();
        if let Some(instance) = &instance {
            self.restore_held(instance);
        }
        self.take_over(instance.as_ref());
        let unused = std::mem::take(&mut self.inherited.listeners).len();
        if unused > 0 {
            tracing::warn!(unused, "listeners that were handed over belong to no master and were closed");
        }
        count
    }

    /// Adopts the master of one directory, or its workers.
    fn adopt_directory(&mut self, directory: &Path) -> io::Result<Found> {
        let Some(state) = read_or_warn::<MasterState>(&directory.join("master.json")) else { return Ok(Found::Nothing) };
        if state.v > state::VERSION {
            return Err(io::Error::other(format!("its file has version {}", state.v)));
        }
        if state.boot != state::boot_id() {
            tracing::info!(shard = %state.shard, gen = state.generation.0, "master is of another boot");
            return Ok(Found::Nothing);
        }
        let Some(known) = state.pid.or_else(|| started(directory)) else { return Ok(Found::Nothing) };
        let pid = Pid::from_raw(known.pid);
        let lives = |proc: &Proc| proc.stat(pid).is_ok_and(|stat| stat.start_ticks == known.start_ticks && !stat.is_zombie());
        let proc = Proc::default();
        // A child of ours may have ended: its pid is its own until that was collected.
        let kept = self.inherited.children.remove(&pid);
        if kept.is_none() && !lives(&proc) {
            return self.adopt_orphans(&state, known, directory);
        }
        let id = MasterId::new(&state.shard, state.generation);
        let process = pidfd::Held::open(pid);
        let fetched = |socket: &SocketState| process.as_ref().map_err(|error| io::Error::from(error.kind()))?.fetch(socket.fd);
        let sockets = state.sockets.iter().map(|socket| self.adopt_socket(&state, socket, || fetched(socket)));
        let sockets = sockets.collect::<io::Result<SocketSet>>()?;
        let (child, process) = match kept {
            Some(child) => (child, None),
            None => (self.children.adopt(pid)?, Some(process?)),
        };
        // Only now can the pid no longer pass to another process unseen.
        if process.is_some() && !lives(&proc) {
            return self.adopt_orphans(&state, known, directory);
        }
        let blueprint = Rc::new(self.blueprint_of(&state, directory)?);
        let notify = NotifySocket::bind(directory.join("notify")).ok();
        let status: Vec<_> =
            state.status.iter().enumerate().map(|(number, point)| (point.pool.clone(), directory.join(format!("s{number}")))).collect();
        let tasks = self.follow_adopted(&id, child, notify);
        let master = Master {
            id: id.clone(),
            pools: Arc::new(blueprint.plan.pools().cloned().collect()),
            blueprint,
            sockets,
            pid: Some(pid),
            process,
            alive: true,
            rescue: state.rescue,
            reopen_when_ready: false,
            launched: SystemTime::now(),
            directory: directory.to_owned(),
            status,
            tasks,
        };
        self.masters.insert(id, master);
        Ok(Found::Master)
    }

    /// Takes a listener of a master, unless it is known already: the one that came to us, or the one that is fetched.
    pub(super) fn adopt_socket(
        &mut self,
        master: &MasterState,
        socket: &SocketState,
        fetch: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Held> {
        // Masters of a shard, and shards of a pool, share sockets: one descriptor of ours for each.
        let known = self.masters.values().flat_map(|master| &master.sockets).find(|held| held.listener.inode == socket.inode);
        let known = known.map(|held| &held.listener).or_else(|| self.sockets.theirs_by_inode(socket.inode));
        let listener = match known {
            Some(listener) => Arc::clone(listener),
            None => {
                let fd = self.inherited.listeners.remove(&socket.inode).map_or_else(fetch, Ok)?;
                Arc::new(listener_of(fd, socket)?)
            }
        };
        let placement = master.plan.placements.iter().find(|placement| placement.listener.endpoint == socket.endpoint);
        let plan = placement.ok_or_else(|| io::Error::other(format!("no pool of it listens at {}", socket.endpoint)))?.listener.clone();
        let (shard, generation) = &socket.bound_for;
        Ok(Held { plan, listener, bound_for: MasterId::new(shard, *generation) })
    }

    /// Takes listeners that came to us and that no master has: those of shards that are parked, paused or halted.
    fn restore_held(&mut self, instance: &InstanceState) {
        let files: Vec<FileId> =
            self.masters.values().flat_map(|master| &master.sockets).filter_map(|held| held.listener.file_id()).collect();
        for HeldState { shard, plan, socket } in &instance.held {
            if !self.draft.blueprints.contains_key(shard) {
                continue;
            }
            let known = self.masters.values().flat_map(|master| &master.sockets).find(|held| held.listener.inode == socket.inode);
            let known = known.map(|held| Arc::clone(&held.listener));
            let came = || self.inherited.listeners.remove(&socket.inode).and_then(|fd| listener_of(fd, socket).ok()).map(Arc::new);
            let Some(listener) = known.or_else(came) else { continue };
            let (bound_for, generation) = &socket.bound_for;
            let held = Held { plan: plan.clone(), listener, bound_for: MasterId::new(bound_for, *generation) };
            let lent = plan.endpoint.path().and_then(|path| files.iter().find(|file| crate::sys::listener::still_ours(path, **file)));
            if stands(&held) || matches!(plan.endpoint, Endpoint::Tcp(_)) {
                self.sockets.restore(&held);
            } else if let Some(file) = lent {
                self.sockets.restore_lent_by(&held, *file);
            }
            tracing::info!(shard = %shard, endpoint = %plan.endpoint, "listener kept, with who waits in its queue");
            self.held.entry(shard.clone()).or_default().push(held);
        }
    }

    /// What the master was made from, as far as it is needed again: to start a like one, and to compare.
    pub(super) fn blueprint_of(&self, state: &MasterState, directory: &Path) -> io::Result<Blueprint> {
        let config = std::fs::read(directory.join("php-fpm.conf"))?;
        let present = self.draft.blueprints.values().next();
        let php = &self.settings.php;
        Ok(Blueprint {
            plan: state.plan.clone(),
            config,
            ini: present.map(|blueprint| Rc::clone(&blueprint.ini)).unwrap_or_default(),
            status: state.status.clone(),
            warmups: Vec::new(),
            fingerprint: state.fingerprint.clone(),
            parts: state.parts.clone(),
            binary: php.binary.clone(),
            arguments: fpm::arguments(php),
            environment: fpm::environment(php, std::env::vars_os()),
            notifies: present.map_or(super::blueprint::Notifies::Yes, |blueprint| blueprint.notifies),
            stderr: present.map_or(super::blueprint::StderrChoice::File, |blueprint| blueprint.stderr),
        })
    }

    /// Sorts the adopted masters into those that serve and those that leave, and hands them to the fleet.
    fn take_over(&mut self, instance: Option<&InstanceState>) {
        let now = self.now();
        self.restore_groups(instance);
        let mut shards: BTreeMap<ShardId, Survivors> = BTreeMap::new();
        for (id, master) in &self.masters {
            let pid = master.pid.and_then(|pid| u32::try_from(pid.as_raw()).ok()).unwrap_or_default();
            let of_shard = shards.entry(id.shard.clone()).or_default();
            let list = if master.alive { &mut of_shard.living } else { &mut of_shard.orphaned };
            list.push((id.generation, pid));
        }
        if let Some(instance) = instance {
            // A shard that nobody serves has no master to be found by.
            let planned = instance.shards.iter().filter(|shard| self.draft.blueprints.contains_key(&shard.shard));
            for shard in planned {
                shards.entry(shard.shard.clone()).or_default();
            }
            self.nginx.restore(instance.names.iter().cloned().collect());
            self.drained = instance.shards.iter().filter(|shard| shard.drained).map(|shard| shard.shard.clone()).collect();
        }
        for (id, survivors) in shards {
            let record = instance.and_then(|instance| instance.shards.iter().find(|shard| shard.shard == id));
            let Survivors { living, orphaned } = survivors;
            let serving = self.who_serves(&id, &living, instance);
            // Where no master serves, workers do, and their listeners are what the next master starts on.
            let heir = serving.or_else(|| self.who_serves(&id, &orphaned, instance));
            if let Some((generation, _)) = heir {
                self.restore_paths(&MasterId::new(&id, generation));
            }
            let adopted = Adopted {
                wanted: if record.is_some_and(|shard| shard.parked) { Wanted::Parked } else { Wanted::Up },
                serving,
                leaving: living.into_iter().filter(|one| Some(*one) != serving).collect(),
                orphaned,
                last: record.map_or(Generation(0), |shard| shard.last),
            };
            let actions = self.fleet.adopt(&id, &adopted, now);
            self.carry_out(actions);
        }
        self.restore_lent();
    }

    /// Recognises adopted listeners at the paths of siblings, to which they were lent (design, rule 9).
    fn restore_lent(&mut self) {
        let files: Vec<FileId> =
            self.masters.values().flat_map(|master| &master.sockets).filter_map(|held| held.listener.file_id()).collect();
        let placements = self.draft.plan.shards.iter().flat_map(|shard| &shard.placements);
        let lent = placements.filter_map(|placement| {
            let endpoint = &placement.listener.endpoint;
            let path = endpoint.path()?;
            let file = files.iter().find(|file| crate::sys::listener::still_ours(path, **file))?;
            Some((endpoint.clone(), *file))
        });
        for (endpoint, file) in lent.collect::<Vec<_>>() {
            self.sockets.restore_lent(&endpoint, file);
        }
    }

    /// Gives the generation that serves: the newest that has taken a path, or else the one the state file names.
    fn who_serves(&self, id: &ShardId, found: &[(Generation, u32)], instance: Option<&InstanceState>) -> Option<(Generation, u32)> {
        let roles = instance.map(|instance| instance.roles.as_slice()).unwrap_or_default();
        let candidate = |(generation, pid): (Generation, u32)| {
            if self.masters.get(&MasterId::new(id, generation)).is_some_and(|master| master.rescue) {
                return None;
            }
            let role = roles.iter().find(|role| role.shard == *id && role.generation == generation).map(|role| role.role);
            let standing = rank(role, self.has_taken_a_path(&MasterId::new(id, generation)))?;
            // Of two of which nothing is known the older one has been proven.
            let age = if standing == Standing::Unknown { u64::MAX - generation.0 } else { generation.0 };
            Some(((standing, age), (generation, pid)))
        };
        found.iter().copied().filter_map(candidate).max().map(|(_, found)| found)
    }

    /// Tells whether a listener that no other generation of its shard accepts on is at its public path.
    fn has_taken_a_path(&self, id: &MasterId) -> bool {
        let others = self.masters.values().filter(|other| other.id.shard == id.shard && other.id != *id);
        let others: HashSet<u64> = others.flat_map(|other| &other.sockets).map(|held| held.listener.inode).collect();
        let mine = self.masters.get(id).map(|master| master.sockets.as_slice()).unwrap_or_default();
        mine.iter().any(|held| !others.contains(&held.listener.inode) && stands(held))
    }

    /// Notes what stands at the public paths of a shard; the generation `id` takes those of its paths that it has not.
    fn restore_paths(&mut self, id: &MasterId) {
        let Some(set) = self.masters.get(id).map(|master| master.sockets.clone()) else { return };
        let _batch = Batch::begin();
        let of_shard = self.masters.values().filter(|master| master.id.shard == id.shard);
        let standing: SocketSet = of_shard.flat_map(|master| &master.sockets).filter(|held| stands(held)).cloned().collect();
        // One that is gone from its path, and had it, is made again like any other.
        let gone: SocketSet = set.iter().filter(|held| self.paths.has_lost_its_path(held)).cloned().collect();
        let tcp = set.iter().filter(|held| matches!(held.plan.endpoint, Endpoint::Tcp(_)));
        for held in standing.iter().chain(&gone).chain(tcp) {
            self.sockets.restore(held);
        }
        self.held.insert(id.shard.clone(), set.clone());
        let unix: SocketSet = set.iter().filter(|held| held.plan.endpoint.path().is_some()).cloned().collect();
        let taken = self.sockets.switch(&unix).and_then(|()| self.point_addresses(&set));
        if let Err(error) = taken {
            tracing::error!(shard = %id.shard, error = %super::chain(&error), "paths of an adopted master were not restored");
        }
        // What stands at its path needs no second name, which a handover that was cut short may have given it.
        for held in standing.iter().chain(&unix).filter(|held| stands(held)) {
            if let Err(error) = held.listener.discard() {
                tracing::debug!(listener = %held.listener.bound, error = %error, "second name of a listener was not removed");
            }
        }
    }

    fn restore_groups(&mut self, instance: Option<&InstanceState>) {
        for group in instance.map(|instance| instance.groups.as_slice()).unwrap_or_default() {
            let member = |(shard, generation): &(ShardId, Generation)| {
                let key = MasterId::new(shard, *generation);
                let all = self.masters.values().flat_map(|master| &master.sockets).chain(self.held.values().flatten());
                let mut theirs = all.filter(|held| held.plan.endpoint == Endpoint::Tcp(group.address));
                let held = theirs.find(|held| held.bound_for == key)?;
                Some((key, Arc::clone(&held.listener.fd)))
            };
            let mut members: Vec<_> = group.members.iter().map(member).collect();
            // A listener that nobody has any more has left the kernel's array: the last one is in its place.
            while let Some(gone) = members.iter().position(Option::is_none) {
                members.swap_remove(gone);
            }
            self.sockets.restore_group(group.address, members.into_iter().flatten().collect());
        }
    }

    /// Masters of ours without a usable file: started in the moment in which the supervisor died. They have served nobody
    /// that nobody else serves, and are told to finish.
    fn dismiss_strays(&self, root: &Path) {
        let proc = Proc::default();
        let prefix = format!("php-fpm: master process ({}/", root.display());
        for pid in proc.pids().unwrap_or_default() {
            let ours = proc.title(pid).is_ok_and(|title| title.starts_with(&prefix));
            if ours && !self.masters.values().any(|master| master.pid == Some(pid)) {
                tracing::warn!(pid = pid.as_raw(), "unknown master of this instance told to finish");
                if let Err(error) = kill(pid, Signal::SIGQUIT) {
                    tracing::debug!(pid = pid.as_raw(), error = %error, "signal reached nobody");
                }
            }
        }
    }
}

/// Makes a listener of a recorded socket's descriptor.
fn listener_of(fd: OwnedFd, socket: &SocketState) -> io::Result<Listener> {
    let file = socket.file.as_ref().map(|file| (file.path.as_path(), FileId { device: file.device, inode: file.inode }));
    let listener = Listener::adopt(fd, file)?;
    if listener.inode != socket.inode {
        return Err(io::Error::other(format!("descriptor {} is not the socket of {}", socket.fd, socket.endpoint)));
    }
    Ok(listener)
}

/// Living masters of one shard, and dead ones with living workers, each with its process group.
#[derive(Debug, Default)]
struct Survivors {
    living: Vec<(Generation, u32)>,
    orphaned: Vec<(Generation, u32)>,
}

/// How good a generation's claim to serve is, from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Nothing is known of it.
    Unknown,
    /// It was leaving and has a path to itself.
    Detained,
    /// It served.
    Served,
    /// It has a path to itself: it served, or was proven and about to.
    Proven,
}

/// Gives a generation's claim; none for a successor that took nothing yet, and for one that was replaced.
fn rank(role: Option<Role>, has_taken_a_path: bool) -> Option<Standing> {
    match (role, has_taken_a_path) {
        (Some(Role::Leaving), true) => Some(Standing::Detained),
        (Some(Role::Serving | Role::Next) | None, true) => Some(Standing::Proven),
        (Some(Role::Serving), false) => Some(Standing::Served),
        (None, false) => Some(Standing::Unknown),
        (Some(Role::Leaving | Role::Next), false) => None,
    }
}

/// Finds the master that was started in `directory` by a supervisor that had no time to note its pid.
fn started(directory: &Path) -> Option<ProcessState> {
    let proc = Proc::default();
    let config = directory.join("php-fpm.conf").display().to_string();
    let title = format!("php-fpm: master process ({config})");
    let is_it = |pid: &Pid| {
        let words = proc.cmdline(*pid).unwrap_or_default();
        // Its own session, unlike workers that have not told their own title yet.
        let leads = proc.stat(*pid).is_ok_and(|stat| stat.session == *pid && !stat.is_zombie());
        leads
            && (words.join(" ").trim() == title
                || words.get(1..4) == Some(&["--nodaemonize".to_owned(), "--fpm-config".to_owned(), config.clone()]))
    };
    let pid = proc.pids().unwrap_or_default().into_iter().find(is_it)?;
    Some(ProcessState { pid: pid.as_raw(), start_ticks: proc.stat(pid).ok()?.start_ticks })
}

/// Tells whether the file at a listener's public path is its own.
fn stands(held: &Held) -> bool {
    match (&held.plan.endpoint, held.listener.file_id()) {
        (Endpoint::Unix(path), Some(file)) => crate::sys::listener::still_ours(path, file),
        (Endpoint::Unix(_) | Endpoint::Tcp(_), _) => false,
    }
}

fn directories(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut found: Vec<PathBuf> = own.map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), error = %error, "directory of a master was not removed");
    }
}
