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

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::draft::keepalive_waits;
use super::events::Event;
use super::fault;
use super::sockets::Held;
use super::supervisor::Supervisor;
use crate::core::shard::{Input, Quieting, Slot};
use crate::edge::nginx;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName};
use crate::model::snapshot::QueueDepth;
use crate::model::time::Moment;
use crate::sys::listener::Listener;
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

/// How long connections of each pool's clients may be used again after their listener lost its path.
#[derive(Debug)]
pub(super) enum Kept {
    /// As NGINX's configuration said; no entry for pools of unknown clients.
    Known(BTreeMap<PoolName, Duration>),
    /// NGINX is being asked for this job.
    Asked {
        /// Its number.
        job: u64,
    },
}

impl Kept {
    /// Takes an answer in, unless a later job asks again or a later reading has told.
    pub(super) fn answered(&mut self, to: u64, waits: BTreeMap<PoolName, Duration>) {
        if matches!(self, Self::Asked { job } if *job == to) {
            *self = Self::Known(waits);
        }
    }

    fn wait(&self, pool: &PoolName) -> Option<Duration> {
        match self {
            Self::Known(waits) => waits.get(pool).copied(),
            Self::Asked { .. } => None,
        }
    }
}

impl Supervisor {
    /// Begins to watch a leaving generation.
    pub(super) fn watch_quiet(&mut self, master: &MasterId, why: Quieting) {
        if why == Quieting::Retired {
            self.withdraw_all(master);
        }
        fault::point("old master watched");
        let since = self.now();
        self.quiet.push(QuietWatch { master: master.clone(), why, since, quiet_since: None });
    }

    /// Takes the paths of a retiring generation out of use, but for those that others serve.
    fn withdraw_all(&mut self, id: &MasterId) {
        let Some(master) = self.masters.get(id) else { return };
        let set = master.sockets.clone();
        let others = self.served_by_others(id);
        self.held.remove(&id.shard);
        for held in &set {
            if self.sockets.is_public(held) && !others.contains(&Arc::as_ptr(&held.listener)) {
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
                    fault::point("old master quiet");
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

    /// Looks at all listeners of a generation with at most two dumps: it may have thousands.
    fn look(&self, watch: &QuietWatch) -> Option<Look> {
        let master = self.masters.get(&watch.master)?;
        let others = self.served_by_others(&watch.master);
        let (public, alone): (Vec<&Held>, Vec<&Held>) = master
            .sockets
            .iter()
            .filter(|held| !others.contains(&Arc::as_ptr(&held.listener)))
            .partition(|held| self.sockets.is_public(held));
        // What a php-fpm that goes on without us serves too does not wait for us.
        let ours: Vec<&Held> = alone.iter().copied().filter(|held| !self.sockets.is_theirs(&held.listener)).collect();
        if waiting_in(&ours) || self.may_be_used_again(&alone, watch) {
            return Some(Look::Waiting);
        }
        Some(match watch.why {
            Quieting::Replaced | Quieting::Retired if !public.is_empty() => Look::Detained,
            Quieting::Parked | Quieting::Replaced | Quieting::Retired => Look::Quiet,
        })
    }

    /// Tells whether a client may still use an accepted connection of one of these listeners.
    fn may_be_used_again(&self, alone: &[&Held], watch: &QuietWatch) -> bool {
        let age = self.now() - watch.since;
        let recent = alone.iter().filter(|held| age < self.keepalive_wait(&held.plan.pool));
        let (mut names, mut addresses) = (Vec::new(), BTreeSet::new());
        for held in recent {
            match held.plan.endpoint {
                Endpoint::Unix(_) => names.push(held.listener.bound.as_str()),
                Endpoint::Tcp(address) => addresses.extend([address]),
            }
        }
        let unix = !names.is_empty() && sock_diag::accepted_unix(&names).is_ok_and(|counts| counts.values().any(|count| *count > 0));
        unix || addresses.into_iter().any(|address| self.accepted_tcp(address, &watch.master) > 0)
    }

    /// Gives the listeners on which serving masters other than `id` accept.
    fn served_by_others(&self, id: &MasterId) -> HashSet<*const Listener> {
        let others = self.masters.values().filter(|other| other.id != *id && other.alive && self.is_serving(&other.id));
        others.flat_map(|other| other.sockets.iter().map(|held| Arc::as_ptr(&held.listener))).collect()
    }

    fn is_serving(&self, id: &MasterId) -> bool {
        self.fleet.shard(&id.shard).is_some_and(|shard| match shard.slot() {
            Slot::Serving { generation, .. } | Slot::HandingOver { generation, .. } => *generation == id.generation,
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) => false,
        })
    }

    /// Gives how long connections of a pool's clients may be used again after their listener lost its path.
    pub(super) fn keepalive_wait(&self, pool: &PoolName) -> Duration {
        self.kept.wait(pool).unwrap_or(KEEPALIVE_WAIT)
    }

    /// Asks NGINX's configuration again whether it keeps connections: it may have been edited and reloaded since the last
    /// reading. Until the answer is there, a connection counts as kept.
    pub(super) fn ask_for_kept(&mut self, job: u64) {
        if self.draft.nginx.is_none() {
            return;
        }
        self.kept = Kept::Asked { job };
        let (children, events, draft) = (self.children.clone(), self.events.clone(), Rc::clone(&self.draft));
        drop(tokio::task::spawn_local(async move {
            let state = nginx::probe(&children, &draft.settings.nginx).await;
            let waits = keepalive_waits(&draft.plan, Some(&state), &draft.settings);
            super::tell(&events, Event::Kept { job, waits }).await;
        }));
    }

    /// Counts the connections to an address that workers of one master hold, whether it lives or not.
    fn accepted_tcp(&self, address: std::net::SocketAddr, id: &MasterId) -> u32 {
        let Some(pid) = self.masters.get(id).and_then(|master| master.pid) else { return 0 };
        let Ok(open) = sock_diag::accepted_tcp(address) else { return 0 };
        if open.is_empty() {
            return 0;
        }
        let proc = Proc::default();
        let held = proc.group(pid).into_iter().filter_map(|worker| proc.socket_inodes_of(worker).ok());
        let count = held.map(|inodes| open.iter().filter(|inode| inodes.contains(inode)).count()).sum::<usize>();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// Tells whether somebody waits in a queue; a queue the kernel does not tell of is taken to be empty.
pub(super) fn waiting_in(listeners: &[&Held]) -> bool {
    let unix = listeners.iter().filter(|held| matches!(held.plan.endpoint, Endpoint::Unix(_)));
    let inodes: Vec<u64> = unix.map(|held| held.listener.inode).collect();
    let waits = |depth: &QueueDepth| depth.now > 0;
    if !inodes.is_empty() && sock_diag::unix_queues(&inodes).is_ok_and(|queues| queues.values().any(waits)) {
        return true;
    }
    let mut tcp = listeners.iter().filter(|held| matches!(held.plan.endpoint, Endpoint::Tcp(_)));
    tcp.any(|held| sock_diag::tcp_queue(&held.listener.fd).is_ok_and(|depth| waits(&depth)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_an_earlier_job_is_dropped() {
        let pool = PoolName::new("www");
        let waits = |seconds| BTreeMap::from([(pool.clone(), Duration::from_secs(seconds))]);
        let mut kept = Kept::Asked { job: 2 };
        kept.answered(1, waits(0));
        assert_eq!(kept.wait(&pool), None);
        kept.answered(2, waits(3));
        assert_eq!(kept.wait(&pool), Some(Duration::from_secs(3)));
        kept.answered(1, waits(0));
        assert_eq!(kept.wait(&pool), Some(Duration::from_secs(3)));
    }
}
