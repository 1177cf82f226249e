//! Keeping the files by which a later supervisor adopts the masters of this one (`state` says what is in them).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fault;
use super::sockets::Held;
use super::state::{self, GroupState, HeldState, InstanceState, MasterState, Role, RoleState, ShardState, socket_state};
use super::supervisor::Supervisor;
use crate::core::shard::Wanted;
use crate::model::ids::ShardId;
use crate::sys::listener::Listener;

impl Supervisor {
    /// Writes what a later supervisor needs to adopt a master. One without it would be told to finish.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write_master(&self, directory: &Path, state: &MasterState) -> Result<(), state::StateError> {
        let result = state::write(&directory.join("master.json"), state);
        fault::point(if state.pid.is_none() { "intent recorded" } else { "master recorded" });
        result
    }

    /// Writes the instance's state if it has changed, and what could not be written before. A full disk is told once and
    /// changes nothing that runs.
    pub(super) fn write_state(&mut self) {
        let path = self.settings.runtime_directory.join("state.json");
        let state = self.instance_state();
        if self.written.as_ref() != Some(&state) || self.unwritten.contains_key(&path) {
            let result = state::write(&path, &state);
            self.written = result.is_ok().then_some(state);
            self.note_written(path, result);
            fault::point("state written");
        }
        for path in self.unwritten.keys().cloned().collect::<Vec<_>>() {
            let master = self.masters.values().find(|master| path.starts_with(&master.directory));
            if path.ends_with("plan.json") {
                self.write_plan();
            } else if let Some(master) = master {
                let state = MasterState::of(&master.id, master.pid, &master.sockets, &master.blueprint);
                let state = MasterState { rescue: master.rescue, ..state };
                let result = self.write_master(&master.directory, &state);
                self.note_written(path, result);
            } else if !path.ends_with("state.json") {
                self.unwritten.remove(&path);
            }
        }
    }

    /// Writes the plan, so that a later supervisor leaves pools where they are.
    pub(super) fn write_plan(&mut self) {
        let path = self.settings.runtime_directory.join("plan.json");
        let result = state::write(&path, &self.draft.plan);
        self.note_written(path, result);
    }

    /// Keeps account of the state files that could not be written.
    pub(super) fn note_written(&mut self, path: PathBuf, result: Result<(), state::StateError>) {
        match result {
            Ok(()) => {
                if self.unwritten.remove(&path).is_some() {
                    tracing::info!(path = %path.display(), "state file was written in the end");
                }
            }
            Err(error) => {
                let text = super::chain(&error);
                if self.unwritten.get(&path) != Some(&text) {
                    tracing::warn!(error = text, "state file was not written");
                }
                self.unwritten.insert(path, text);
            }
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
            held: self.held_alone(),
        }
    }

    /// Gives the listeners that are held for a shard and that no master has.
    fn held_alone(&self) -> Vec<HeldState> {
        let has =
            |held: &Held| self.masters.values().flat_map(|master| &master.sockets).any(|other| other.listener.inode == held.listener.inode);
        // Whoever serves has the listeners that are held for its shard.
        let serves = |id: &ShardId| self.fleet.shard(id).is_some_and(|shard| shard.serving().is_some());
        let shards = self.held.iter().filter(|(id, _)| !serves(id)).flat_map(|(id, set)| set.iter().map(move |held| (id, held)));
        let alone = shards.filter(|(_, held)| !has(held));
        alone.map(|(shard, held)| HeldState { shard: shard.clone(), plan: held.plan.clone(), socket: socket_state(held) }).collect()
    }

    /// Gives every listener there is, once.
    pub(super) fn listeners(&self) -> Vec<Arc<Listener>> {
        let sets = self.masters.values().flat_map(|master| &master.sockets).chain(self.held.values().flatten());
        let all = sets.map(|held| &held.listener).chain(self.sockets.listeners());
        let by_inode: BTreeMap<u64, Arc<Listener>> = all.map(|listener| (listener.inode, Arc::clone(listener))).collect();
        by_inode.into_values().collect()
    }

    /// Tells whether the state as it is now is in its file.
    pub(super) fn state_is_written(&self) -> bool {
        self.written.as_ref() == Some(&self.instance_state())
    }
}
