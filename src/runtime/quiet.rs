//! When an old generation may be told to quit.
//!
//! A listener of an old generation is *quiet* when nobody waits in its queue that only this generation would serve, and no
//! client holds a connection that it may use again:
//!
//! - the successor has the same listener (shared pools, held sockets): at once, the successor serves the queue (P21, P15);
//! - its path was given away: when its queue is empty, and its accepted connections are gone or older than NGINX keeps
//!   them (P13, P25, P26);
//! - it is still public and the shard is being parked: at once, the listener stays held and its queue waits (P4);
//! - it is still public because NGINX names it, or because another shard will take its path: *detained* until that is done.

use std::sync::Arc;
use std::time::Duration;

use super::sockets::Held;
use super::supervisor::Supervisor;
use crate::core::shard::{Input, Quieting, Slot};
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName};
use crate::model::time::Moment;
use crate::sys::proc::Proc;
use crate::sys::sock_diag;

/// How often leaving generations are looked at: a look is one netlink question, and a turn ends at most this much late.
pub(super) const QUIET_POLL: Duration = Duration::from_millis(20);

/// What P25 measured to be enough after the switch with `keepalive_time 2s; keepalive_timeout 1s`, with a margin for
/// NGINX's timer resolution.
pub(super) const KEEPALIVE_WAIT: Duration = Duration::from_millis(3_300);

/// One generation that is watched.
#[derive(Debug, Clone)]
pub(super) struct QuietWatch {
    /// Which one.
    pub master: MasterId,
    /// Why it leaves.
    pub why: Quieting,
    /// Since when.
    pub since: Moment,
    /// Since when every look found it quiet.
    pub(super) quiet_since: Option<Moment>,
}

/// What a look found, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    Quiet,
    Detained,
    Waiting,
}

impl Supervisor {
    /// Begins to watch a leaving generation.
    pub(super) fn watch_quiet(&mut self, master: &MasterId, why: Quieting) {
        if why == Quieting::Retired {
            self.withdraw_all(master);
        }
        let since = self.now();
        self.quiet.push(QuietWatch { master: master.clone(), why, since, quiet_since: None });
    }

    /// Takes the paths of a retiring generation out of use, but for those that others serve.
    fn withdraw_all(&mut self, id: &MasterId) {
        let Some(master) = self.masters.get(id) else { return };
        let set = master.sockets.clone();
        self.held.remove(&id.shard);
        for held in &set {
            if self.sockets.is_public(held) && !self.served_by_another(held, id) {
                self.drop_endpoint(&held.plan.endpoint);
            }
        }
    }

    /// Looks at every watched generation once.
    pub(super) fn look_for_quiet(&mut self) {
        let watches = std::mem::take(&mut self.quiet);
        let mut keep = Vec::new();
        for mut watch in watches {
            let generation = watch.master.generation;
            let (id, now) = (watch.master.shard.clone(), self.now());
            match self.look(&watch) {
                // Not at the first look: a connection may be on its way from the queue to a worker.
                Some(Look::Quiet) if watch.quiet_since.is_some_and(|since| now - since >= QUIET_POLL) => {
                    self.feed(&id, Input::Quiet { generation });
                }
                Some(look) => {
                    watch.quiet_since = if look == Look::Quiet { watch.quiet_since.or(Some(now)) } else { None };
                    keep.push(watch);
                    if look == Look::Detained {
                        self.feed(&id, Input::Detained { generation });
                    }
                }
                None => {}
            }
        }
        // Feeding may have begun new watches.
        self.quiet.extend(keep);
    }

    fn look(&self, watch: &QuietWatch) -> Option<Look> {
        let master = self.masters.get(&watch.master)?;
        let age = self.now() - watch.since;
        master.sockets.iter().map(|held| self.look_at(held, watch, age)).max().or(Some(Look::Quiet))
    }

    fn look_at(&self, held: &Held, watch: &QuietWatch, age: Duration) -> Look {
        if self.served_by_another(held, &watch.master) {
            return Look::Quiet;
        }
        if self.sockets.is_public(held) {
            return match watch.why {
                Quieting::Parked => Look::Quiet,
                Quieting::Replaced | Quieting::Retired => Look::Detained,
            };
        }
        if queue_of(held) > 0 {
            return Look::Waiting;
        }
        let patience = self.keepalive_wait(&held.plan.pool);
        if age >= patience || self.accepted_of(held, &watch.master) == 0 { Look::Quiet } else { Look::Waiting }
    }

    /// Tells whether a serving master other than `id` accepts on the same socket.
    fn served_by_another(&self, held: &Held, id: &MasterId) -> bool {
        self.masters.values().any(|other| {
            other.id != *id
                && other.alive
                && self.is_serving(&other.id)
                && other.sockets.iter().any(|theirs| Arc::ptr_eq(&theirs.listener, &held.listener))
        })
    }

    fn is_serving(&self, id: &MasterId) -> bool {
        self.fleet.shard(&id.shard).is_some_and(|shard| match shard.slot() {
            Slot::Serving { generation, .. } | Slot::HandingOver { generation, .. } => *generation == id.generation,
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) => false,
        })
    }

    /// Gives how long connections of a pool's clients may be used again after their listener lost its path.
    fn keepalive_wait(&self, pool: &PoolName) -> Duration {
        self.draft.keepalive.get(pool).copied().unwrap_or(KEEPALIVE_WAIT)
    }

    fn accepted_of(&self, held: &Held, id: &MasterId) -> u32 {
        match &held.plan.endpoint {
            Endpoint::Unix(_) => {
                let name = held.listener.bound.as_str();
                sock_diag::accepted_unix(&[name]).ok().and_then(|counts| counts.get(name).copied()).unwrap_or_default()
            }
            Endpoint::Tcp(address) => self.accepted_tcp(*address, id),
        }
    }

    /// Counts the connections to an address that workers of one master hold.
    fn accepted_tcp(&self, address: std::net::SocketAddr, id: &MasterId) -> u32 {
        let Some(pid) = self.masters.get(id).and_then(|master| master.pid) else { return 0 };
        let Ok(open) = sock_diag::accepted_tcp(address) else { return 0 };
        if open.is_empty() {
            return 0;
        }
        let proc = Proc::default();
        let workers = proc.children_of(pid).unwrap_or_default();
        let held = workers.into_iter().filter_map(|worker| proc.socket_inodes_of(worker).ok());
        let count = held.map(|inodes| open.iter().filter(|inode| inodes.contains(inode)).count()).sum::<usize>();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// Gives how many connections wait at a listener; 0 when the kernel does not tell.
fn queue_of(held: &Held) -> u32 {
    let depth = match &held.plan.endpoint {
        Endpoint::Unix(_) => {
            sock_diag::unix_queues(&[held.listener.inode]).ok().and_then(|queues| queues.get(&held.listener.inode).copied())
        }
        Endpoint::Tcp(_) => sock_diag::tcp_queue(&held.listener.fd).ok(),
    };
    depth.map_or(0, |depth| depth.now)
}
