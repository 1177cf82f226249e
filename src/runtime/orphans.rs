//! Workers whose master died while no supervisor ran.
//!
//! They go on serving (P15), and they are the only ones that still hold the listeners. A worker has its own pool's listener
//! alone, under another number than its master had; so each listener is looked for by its inode. A process that has one of
//! them is a worker of ours, whatever else it says of itself; and as long as it lives, the kernel gives the number of its
//! process group to nobody else.
//!
//! A pool without a worker, as an on-demand pool that rests, has lost its listener: its path is bound anew. The worker of a
//! private status socket serves nobody, but has to be told to leave as the others.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use nix::unistd::Pid;

use super::adopt::Found;
use super::master::Master;
use super::sockets::{Held, SocketSet};
use super::state::{MasterState, ProcessState, SocketState};
use super::supervisor::Supervisor;
use crate::model::ids::MasterId;
use crate::sys::pidfd;
use crate::sys::proc::Proc;

impl Supervisor {
    /// Takes over what a dead master left.
    ///
    /// # Errors
    /// Its configuration cannot be read.
    pub(super) fn adopt_orphans(&mut self, state: &MasterState, known: ProcessState, directory: &Path) -> io::Result<Found> {
        let (shard, generation) = (&state.shard, state.generation);
        let group = Pid::from_raw(known.pid);
        let members = orphans_of(group, known.start_ticks);
        let sockets = self.sockets_of_orphans(state, &members);
        if sockets.is_empty() && !has_any(&members, &state.private) {
            tracing::warn!(%shard, gen = generation.0, pid = known.pid, "master ended while no supervisor ran, and nothing of it is left");
            return Ok(Found::Nothing);
        }
        let (workers, listeners, lost) = (members.len(), sockets.len(), state.sockets.len() - sockets.len());
        tracing::warn!(%shard, gen = generation.0, pid = known.pid, workers, listeners, lost, "workers of a dead master go on serving");
        let id = MasterId::new(shard, generation);
        let blueprint = Rc::new(self.blueprint_of(state, directory)?);
        self.good.insert(shard.clone(), Rc::clone(&blueprint));
        let master = Master {
            id: id.clone(),
            pools: Arc::new(blueprint.plan.pools().cloned().collect()),
            blueprint,
            sockets,
            pid: Some(group),
            process: None,
            alive: false,
            rescue: state.rescue,
            reopen_when_ready: false,
            launched: std::time::SystemTime::now(),
            directory: directory.to_owned(),
            status: Vec::new(),
            tasks: Vec::new(),
        };
        self.follow_group(&id, group);
        self.masters.insert(id, master);
        Ok(Found::Orphans)
    }

    fn sockets_of_orphans(&mut self, state: &MasterState, members: &[Pid]) -> SocketSet {
        // What came to us need not be looked for.
        let came = |socket: &SocketState| self.adopt_socket(state, socket, || Err(io::ErrorKind::NotFound.into())).ok();
        let mut found: Vec<Option<Held>> = if members.is_empty() { Vec::new() } else { state.sockets.iter().map(came).collect() };
        for member in members {
            let Ok(process) = pidfd::Held::open(*member) else { continue };
            // After the process is held: it is still the one that was looked at.
            let numbers = Proc::default().sockets_of(*member).unwrap_or_default();
            for (place, socket) in found.iter_mut().zip(&state.sockets).filter(|(place, _)| place.is_none()) {
                let Some(number) = numbers.get(&socket.inode) else { continue };
                *place = self.socket_of_orphan(&process, *number, (state, socket));
            }
        }
        found.into_iter().flatten().collect()
    }

    fn socket_of_orphan(&mut self, process: &pidfd::Held, number: i32, of: (&MasterState, &SocketState)) -> Option<Held> {
        match self.adopt_socket(of.0, of.1, || process.fetch(number)) {
            Ok(held) => Some(held),
            Err(error) => {
                tracing::warn!(shard = %of.0.shard, endpoint = %of.1.endpoint, error = %error, "listener was not fetched from a worker");
                None
            }
        }
    }
}

/// Tells whether a process has one of these sockets.
fn has_any(members: &[Pid], inodes: &[u64]) -> bool {
    let open = members.iter().filter_map(|member| Proc::default().sockets_of(*member).ok());
    open.into_iter().any(|open| inodes.iter().any(|inode| open.contains_key(inode)))
}

/// Gives the living processes of a dead leader's session. Where another process has the leader's pid, that session was gone.
fn orphans_of(group: Pid, start_ticks: u64) -> Vec<Pid> {
    let proc = Proc::default();
    if proc.stat(group).is_ok_and(|stat| stat.start_ticks != start_ticks) {
        return Vec::new();
    }
    proc.group(group)
}
