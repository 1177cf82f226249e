//! Adopting masters that outlived the supervisor that started them (design, section 5).
//!
//! Each master's own file says who it is and what it accepts on; the descriptors are fetched from the master itself (P24).
//! Nothing is taken on trust: the start time must be the recorded one, each socket's inode too. Who serves is told by
//! `state.json` and checked against the files at the public paths: a successor whose sockets are there has taken over,
//! whatever the state file had time to say; one that has taken only some of its paths had been proven and takes the rest.
//!
//! What cannot be adopted is never killed blindly: a process is told to finish only when its title names our directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::blueprint::Blueprint;
use super::master::Master;
use super::sockets::{Held, SocketSet};
use super::state::{self, FileState, GroupState, InstanceState, MasterState, Role, RoleState, ShardState, SocketState};
use super::supervisor::Supervisor;
use crate::core::shard::{Adopted, Wanted};
use crate::edge::fpm;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::plan::Plan;
use crate::sys::listener::{FileId, Listener, Place};
use crate::sys::notify::NotifySocket;
use crate::sys::pidfd;
use crate::sys::proc::Proc;

/// How many masters were adopted and how many had to be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AdoptionCount {
    pub(super) adopted: usize,
    pub(super) refused: usize,
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

impl Supervisor {
    /// Takes over every living master of an earlier supervisor. Called before anything is started.
    pub(super) fn adopt_all(&mut self) -> AdoptionCount {
        let root = self.settings.runtime_directory.clone();
        let instance: Option<InstanceState> = read_or_warn(&root.join("state.json")).filter(|state: &InstanceState| {
            let usable = state.v == state::VERSION && state.boot == state::boot_id();
            if !usable {
                tracing::info!(version = state.v, "state file is of another boot or version");
            }
            usable
        });
        let mut count = AdoptionCount::default();
        for directory in directories(&root.join("m")) {
            match self.adopt_directory(&directory) {
                Ok(true) => count.adopted += 1,
                Ok(false) => remove(&directory),
                Err(error) => {
                    count.refused += 1;
                    tracing::error!(directory = %directory.display(), error = %error, "master was not adopted");
                }
            }
        }
        self.dismiss_strays(&root.join("m"));
        if count.adopted > 0 {
            self.take_over(instance.as_ref());
        }
        count
    }

    /// Adopts the master of one directory. `false`: it no longer lives.
    fn adopt_directory(&mut self, directory: &Path) -> io::Result<bool> {
        let Some(state) = read_or_warn::<MasterState>(&directory.join("master.json")) else { return Ok(false) };
        if state.v != state::VERSION {
            return Err(io::Error::other(format!("its file has version {}", state.v)));
        }
        let pid = Pid::from_raw(state.pid);
        let lives = |proc: &Proc| proc.stat(pid).is_ok_and(|stat| stat.start_ticks == state.start_ticks && !stat.is_zombie());
        let proc = Proc::default();
        if !lives(&proc) {
            return Ok(false);
        }
        let id = MasterId::new(&state.shard, state.generation);
        let fds = state.sockets.iter().map(|socket| socket.fd).collect();
        let process = pidfd::Held::open(pid)?;
        let sockets = state.sockets.iter().map(|socket| self.adopt_socket(&process, &state, socket)).collect::<io::Result<SocketSet>>()?;
        let child = self.children.adopt(pid)?;
        // Only now can the pid no longer pass to another process unseen.
        if !lives(&proc) {
            return Ok(false);
        }
        let blueprint = Rc::new(self.blueprint_of(&state, directory)?);
        let notify = NotifySocket::bind(directory.join("notify")).ok();
        let status: Vec<_> =
            state.status.iter().enumerate().map(|(number, point)| (point.pool.clone(), directory.join(format!("s{number}")))).collect();
        let tasks = self.follow_adopted(&id, child, notify);
        let master = Master {
            id: id.clone(),
            blueprint,
            sockets,
            fds,
            pid: Some(pid),
            process: Some(process),
            alive: true,
            reopen_when_ready: false,
            directory: directory.to_owned(),
            status,
            tasks,
        };
        self.masters.insert(id, master);
        Ok(true)
    }

    fn adopt_socket(&self, process: &pidfd::Held, master: &MasterState, socket: &SocketState) -> io::Result<Held> {
        // Masters of a shard, and shards of a pool, share sockets: one descriptor of ours for each.
        let known = self.masters.values().flat_map(|master| &master.sockets).find(|held| held.listener.inode == socket.inode);
        let listener = match known {
            Some(held) => Arc::clone(&held.listener),
            None => {
                let fd = process.fetch(socket.fd)?;
                let file = socket.file.as_ref().map(|file| (file.path.as_path(), FileId { device: file.device, inode: file.inode }));
                let listener = Listener::adopt(fd, file)?;
                if listener.inode != socket.inode {
                    return Err(io::Error::other(format!("descriptor {} is not the socket of {}", socket.fd, socket.endpoint)));
                }
                Arc::new(listener)
            }
        };
        let placement = master.plan.placements.iter().find(|placement| placement.listener.endpoint == socket.endpoint);
        let plan = placement.ok_or_else(|| io::Error::other(format!("no pool of it listens at {}", socket.endpoint)))?.listener.clone();
        let (shard, generation) = &socket.bound_for;
        Ok(Held { plan, listener, bound_for: MasterId::new(shard, *generation) })
    }

    /// What the master was made from, as far as it is needed again: to start a like one, and to compare.
    fn blueprint_of(&self, state: &MasterState, directory: &Path) -> io::Result<Blueprint> {
        let config = std::fs::read(directory.join("php-fpm.conf"))?;
        let present = self.draft.blueprints.values().next();
        let php = &self.settings.php;
        Ok(Blueprint {
            plan: state.plan.clone(),
            config,
            status: state.status.clone(),
            warmups: Vec::new(),
            fingerprint: state.fingerprint.clone(),
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
        let mut shards: BTreeMap<ShardId, Vec<(Generation, u32)>> = BTreeMap::new();
        for (id, master) in &self.masters {
            let pid = master.pid.and_then(|pid| u32::try_from(pid.as_raw()).ok()).unwrap_or_default();
            shards.entry(id.shard.clone()).or_default().push((id.generation, pid));
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
        for (id, living) in shards {
            let record = instance.and_then(|instance| instance.shards.iter().find(|shard| shard.shard == id));
            let serving = self.who_serves(&id, &living, instance);
            if let Some((generation, _)) = serving {
                self.restore_paths(&MasterId::new(&id, generation));
            }
            let adopted = Adopted {
                wanted: if record.is_some_and(|shard| shard.parked) { Wanted::Parked } else { Wanted::Up },
                serving,
                leaving: living.iter().filter(|one| Some(**one) != serving).copied().collect(),
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

    /// Gives the generation whose sockets are at the public paths, or the one the state file names.
    fn who_serves(&self, id: &ShardId, living: &[(Generation, u32)], instance: Option<&InstanceState>) -> Option<(Generation, u32)> {
        let part = |generation: Generation| {
            let roles = instance.map(|instance| instance.roles.as_slice()).unwrap_or_default();
            roles.iter().find(|role| role.shard == *id && role.generation == generation).map(|role| role.role)
        };
        let public = |generation: Generation| {
            let set = self.masters.get(&MasterId::new(id, generation)).map(|master| master.sockets.as_slice()).unwrap_or_default();
            set.iter().filter(|held| stands(held)).count()
        };
        living
            .iter()
            .copied()
            .filter(|(generation, _)| part(*generation) != Some(Role::Leaving) || public(*generation) > 0)
            .max_by_key(|(generation, _)| (public(*generation), part(*generation) == Some(Role::Serving), *generation))
    }

    /// Notes what stands at the public paths; a serving master takes those of its paths that it has not.
    fn restore_paths(&mut self, id: &MasterId) {
        let Some(set) = self.masters.get(id).map(|master| master.sockets.clone()) else { return };
        for held in set.iter().filter(|held| stands(held) || matches!(held.plan.endpoint, Endpoint::Tcp(_))) {
            self.sockets.restore(held);
        }
        self.held.insert(id.shard.clone(), set.clone());
        let unix: SocketSet = set.iter().filter(|held| held.plan.endpoint.path().is_some()).cloned().collect();
        let taken = self.sockets.switch(&unix).and_then(|()| self.point_addresses(&set));
        if let Err(error) = taken {
            tracing::error!(shard = %id.shard, error = %super::chain(&error), "paths of an adopted master were not restored");
        }
    }

    fn restore_groups(&mut self, instance: Option<&InstanceState>) {
        for group in instance.map(|instance| instance.groups.as_slice()).unwrap_or_default() {
            let members = group.members.iter().filter_map(|(shard, generation)| {
                let key = MasterId::new(shard, *generation);
                let all = self.masters.values().flat_map(|master| &master.sockets);
                let mut theirs = all.filter(|held| held.plan.endpoint == Endpoint::Tcp(group.address));
                let held = theirs.find(|held| held.bound_for == key)?;
                Some((key, Arc::clone(&held.listener.fd)))
            });
            let members: Vec<_> = members.collect();
            self.sockets.restore_group(group.address, members);
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

    /// Writes what a later supervisor needs to adopt a master.
    ///
    /// # Errors
    /// The file cannot be written: the master must not be left without one.
    pub(super) fn write_master(&self, id: &MasterId) -> Result<(), state::StateError> {
        let Some(master) = self.masters.get(id) else { return Ok(()) };
        let Some(pid) = master.pid else { return Ok(()) };
        let start_ticks = Proc::default().stat(pid).map_or(0, |stat| stat.start_ticks);
        let sockets = master.sockets.iter().zip(&master.fds).map(|(held, fd)| socket_state(held, *fd)).collect();
        let state = MasterState {
            v: state::VERSION,
            shard: id.shard.clone(),
            generation: id.generation,
            pid: pid.as_raw(),
            start_ticks,
            fingerprint: master.blueprint.fingerprint.clone(),
            plan: master.blueprint.plan.clone(),
            status: master.blueprint.status.clone(),
            sockets,
        };
        state::write(&master.directory.join("master.json"), &state)
    }

    /// Writes the instance's state if it has changed. A full disk is told once and changes nothing that runs.
    pub(super) fn write_state(&mut self) {
        let state = self.instance_state();
        if self.written.as_ref() == Some(&state) {
            return;
        }
        match state::write(&self.settings.runtime_directory.join("state.json"), &state) {
            Ok(()) => self.written = Some(state),
            Err(error) => tracing::warn!(error = %super::chain(&error), "state was not written"),
        }
    }

    /// Writes the plan, so that a later supervisor leaves pools where they are.
    pub(super) fn write_plan(&self) {
        if let Err(error) = state::write(&self.settings.runtime_directory.join("plan.json"), &self.draft.plan) {
            tracing::warn!(error = %super::chain(&error), "plan was not written");
        }
    }

    fn instance_state(&self) -> InstanceState {
        let roles = self.masters.keys().map(|id| {
            let shard = self.fleet.shard(&id.shard);
            let serving = shard.and_then(crate::core::shard::Shard::serving).is_some_and(|(generation, _)| generation == id.generation);
            let next = shard.and_then(crate::core::shard::Shard::birth).is_some_and(|birth| birth.generation == id.generation);
            let role = match (serving, next) {
                (true, _) => Role::Serving,
                (false, true) => Role::Next,
                (false, false) => Role::Leaving,
            };
            RoleState { shard: id.shard.clone(), generation: id.generation, role }
        });
        let shards = self.fleet.shards().map(|shard| ShardState {
            shard: shard.id().clone(),
            last: shard.last_generation(),
            parked: shard.wanted() == Wanted::Parked,
            drained: self.drained.contains(shard.id()),
        });
        let groups = self
            .sockets
            .groups()
            .map(|(address, members)| GroupState { address, members: members.into_iter().map(|id| (id.shard, id.generation)).collect() });
        InstanceState {
            v: state::VERSION,
            boot: state::boot_id(),
            roles: roles.collect(),
            shards: shards.collect(),
            groups: groups.collect(),
            names: self.nginx.all_names(),
        }
    }
}

/// Tells whether the file at a listener's public path is its own.
fn stands(held: &Held) -> bool {
    match (&held.plan.endpoint, held.listener.file_id()) {
        (Endpoint::Unix(path), Some(file)) => crate::sys::listener::still_ours(path, file),
        (Endpoint::Unix(_) | Endpoint::Tcp(_), _) => false,
    }
}

fn socket_state(held: &Held, fd: i32) -> SocketState {
    let file = match &held.listener.place {
        Place::Unix { directory, name, file } => Some(FileState { path: directory.join(name), device: file.device, inode: file.inode }),
        Place::Tcp { .. } => None,
    };
    let bound_for = (held.bound_for.shard.clone(), held.bound_for.generation);
    SocketState { endpoint: held.plan.endpoint.clone(), fd, inode: held.listener.inode, file, bound_for }
}

fn directories(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), error = %error, "directory of a master was not removed");
    }
}
