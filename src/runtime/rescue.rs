//! Serving what waits at the sockets of a shard that is down (`core::shard`, rescue).
//!
//! A rescue master runs on the old listeners, with what the shard last served with, or else with what a sibling serves with;
//! of that it has only the pools whose paths are lent. It is given its own copy of the php.ini files as they were read with
//! that configuration: a php.ini that was spoiled since is the likeliest reason why no master starts any more.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::blueprint::Blueprint;
use super::launch::{LaunchError, make_directory, write_private};
use super::sockets::{Held, SocketSet};
use super::supervisor::Supervisor;
use crate::core::fleet::FleetAction;
use crate::core::shard::{Input, Leaving, LeavingStage, Left, Shard};
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName, ShardId};
use crate::sys::proc::Proc;

impl Supervisor {
    /// Tells what was found at the sockets of a shard whose paths are lent.
    pub(super) fn look_at_left(&self, id: &ShardId) -> Left {
        let away = self.given_away(id);
        let (served, deserted): (Vec<&Held>, Vec<&Held>) = away.iter().partition(|held| self.is_accepted_on(id, held));
        match (super::quiet::waiting_in(&deserted), served.is_empty()) {
            (true, _) => Left::Stranded,
            (false, false) => Left::Served,
            (false, true) => Left::Nothing,
        }
    }

    /// Gives the listeners of a shard at which nobody arrives any more.
    pub(super) fn given_away(&self, id: &ShardId) -> SocketSet {
        let away = |held: &&Held| match held.plan.endpoint {
            Endpoint::Unix(_) => self.sockets.is_lent(held),
            Endpoint::Tcp(_) => !self.sockets.is_public(held),
        };
        self.held.get(id).into_iter().flatten().filter(away).cloned().collect()
    }

    /// Tells whether a generation that is not told to go yet accepts on a listener.
    fn is_accepted_on(&self, id: &ShardId, held: &Held) -> bool {
        let leaving = self.fleet.shard(id).map(Shard::leaving).unwrap_or_default();
        let stays = |leaving: &&Leaving| matches!(leaving.stage(), LeavingStage::Orphaned | LeavingStage::Quieting { .. });
        let masters = leaving.iter().filter(stays).filter_map(|leaving| self.masters.get(&MasterId::new(id, leaving.generation())));
        let mut theirs = masters.filter(|master| master.sockets.iter().any(|other| Arc::ptr_eq(&other.listener, &held.listener)));
        let proc = Proc::default();
        theirs.any(|master| {
            let workers = || master.pid.map(|pid| proc.group(pid)).unwrap_or_default();
            let has_it = |pid| proc.socket_inodes_of(pid).is_ok_and(|inodes| inodes.contains(&held.listener.inode));
            master.alive || workers().into_iter().any(has_it)
        })
    }

    /// Starts a rescue master.
    pub(super) fn rescue_effect(&mut self, id: &MasterId) -> Vec<FleetAction> {
        let generation = id.generation;
        let input = match self.rescue(id) {
            Ok(pid) => Input::Launched { generation, pid },
            Err(why) => {
                tracing::warn!(shard = %id.shard, gen = generation.0, why, "rescue master was not started");
                Input::LaunchFailed { generation, why }
            }
        };
        self.fleet.handle(&id.shard, input, self.now())
    }

    fn rescue(&mut self, id: &MasterId) -> Result<u32, String> {
        let set = self.given_away(&id.shard);
        let pools: BTreeSet<&PoolName> = set.iter().map(|held| &held.plan.pool).collect();
        let sibling = self.fleet.shards().filter_map(|shard| self.masters.get(&MasterId::new(shard.id(), shard.serving()?.0)));
        let known = self.good.get(&id.shard).into_iter().chain(sibling.map(|master| &master.blueprint));
        let mut blueprint =
            known.into_iter().find_map(|blueprint| blueprint.only(&pools)).ok_or("no configuration of its pools has served")?;
        let directory = self.master_directory(id);
        let started = make_directory(&directory).and_then(|()| own_ini(&mut blueprint, &directory));
        started.and_then(|()| self.start_on(id, set, &Rc::new(blueprint))).map_err(|error| super::chain(&error))
    }
}

/// Lets a master read the php.ini files of its blueprint from its own directory.
fn own_ini(blueprint: &mut Blueprint, directory: &Path) -> Result<(), LaunchError> {
    let scanned = directory.join("ini");
    make_directory(&scanned)?;
    for (number, text) in blueprint.ini.scanned.iter().enumerate() {
        // They are read in the order of their names.
        write_private(&scanned.join(format!("{number:06}.ini")), text)?;
    }
    let main = directory.join("php.ini");
    write_private(&main, &blueprint.ini.main)?;
    if let Some(at) = blueprint.arguments.iter().position(|argument| argument == "-c") {
        blueprint.arguments.drain(at..(at + 2).min(blueprint.arguments.len()));
    }
    blueprint.arguments.extend(["-c".into(), main.into()]);
    let name = OsStr::new("PHP_INI_SCAN_DIR");
    blueprint.environment.retain(|(known, _)| known != name);
    blueprint.environment.push((name.into(), scanned.into()));
    Ok(())
}
