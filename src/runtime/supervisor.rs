//! The one owner of the fleet: events come in, the pure machines decide, effects go out.
//!
//! Everything here runs on one thread and never waits: what takes time is a task that reports back as an
//! [`Event`](super::events::Event) with the generation it was about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::signal::Signal as SystemSignal;
use tokio::sync::watch;

use super::blueprint::Blueprint;
use super::calls::{ActiveCall, Ended};
use super::draft::Draft;
use super::fault;
use super::health::HealthBook;
use super::journal;
use super::master::Master;
use super::nginx::NginxBook;
use super::quiet::QuietWatch;
use super::sockets::{Held, SocketSet, Sockets};
use crate::core::fleet::{Fleet, FleetAction};
use crate::core::shard::{self, Action, Input, Signal, Slot, Target};
use crate::edge::control::replies::ReplySink;
use crate::edge::control::server::Gate;
use crate::edge::service::Service;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, ShardId};
use crate::model::listen::Handover;
use crate::model::settings::Settings;
use crate::model::snapshot::Snapshot;
use crate::model::time::Moment;
use crate::model::wire::Progress;
use crate::sys::children::Children;

/// Where the supervisor is in its own life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first masters are on their way.
    Booting,
    /// Every shard has served, or failed once.
    Running,
    /// Everything is told to leave.
    Stopping,
}

/// All state of a running supervisor.
#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) settings: Rc<Settings>,
    pub(super) draft: Rc<Draft>,
    pub(super) fleet: Fleet,
    pub(super) sockets: Sockets,
    pub(super) masters: BTreeMap<MasterId, Master>,
    /// The listeners at each shard's public endpoints, held even while no master serves.
    pub(super) held: BTreeMap<ShardId, SocketSet>,
    /// What each shard last served with.
    pub(super) good: BTreeMap<ShardId, Rc<Blueprint>>,
    /// What PHP complained of when the masters that serve were started: no reason to refuse a new one.
    pub(super) tolerated: BTreeSet<String>,
    pub(super) quiet: Vec<QuietWatch>,
    pub(super) health: HealthBook,
    pub(super) nginx: NginxBook,
    pub(super) call: Option<ActiveCall>,
    /// Those who asked for the stop and wait for its end.
    pub(super) stops: Vec<ReplySink>,
    /// What the service manager was last told of the shards.
    pub(super) status_told: String,
    /// Whether it was told of a reload that is not over.
    pub(super) reload_told: bool,
    /// Shards that were drained: the upstream does not name them.
    pub(super) drained: BTreeSet<ShardId>,
    pub(super) pending: super::calls::Pending,
    pub(super) phase: Phase,
    pub(super) snapshot: watch::Sender<Arc<Snapshot>>,
    pub(super) events: super::Events,
    pub(super) children: Children,
    pub(super) started: Instant,
    pub(super) tasks: super::apply::Reading,
    pub(super) service: Service,
    pub(super) watcher: Option<tokio::task::JoinHandle<()>>,
    pub(super) drawn: super::picture::DrawnPools,
    pub(super) snapshot_due: Moment,
    pub(super) alive_due: Moment,
    /// Whether something changed that whoever asks next must see.
    pub(super) snapshot_dirty: bool,
    /// Pools whose listeners cannot be had.
    pub(super) barred: super::barred::Barred,
    pub(super) kept: super::quiet::Kept,
    /// The take-over under way.
    pub(super) takeover: Option<super::takeover::Takeover>,
    /// The hand-back under way.
    pub(super) handback: Option<super::handback::Handback>,
    /// A take-over that was asked for before every shard had started.
    pub(super) waiting_takeover: Option<(Option<String>, super::takeover::Earnest, ReplySink)>,
    pub(super) layout: super::pinning::LayoutBook,
    pub(super) groups: super::groups::GroupBook,
    pub(super) paths: super::paths::PathBook,
    /// The upgrade under way.
    pub(super) upgrade: Option<super::upgrade::Upgrade>,
    /// What holds clients of the control socket back.
    pub(super) gate: Option<Gate>,
    /// The upgrade that led to this supervisor, until its end is told.
    pub(super) arrival: Option<super::handoff::Arrival>,
    /// What came with the program's start and belongs to masters.
    pub(super) inherited: super::handoff::Kept,
    /// What was adopted at the start.
    pub(super) adoption: super::adopt::AdoptionCount,
    /// The state as last written.
    pub(super) written: Option<super::state::InstanceState>,
    /// The state files that could not be written, and why: tried again until they can.
    pub(super) unwritten: BTreeMap<PathBuf, String>,
}

impl Supervisor {
    /// Gives the time on the supervisor's clock.
    pub(super) fn now(&self) -> Moment {
        Moment::at(self.started.elapsed())
    }

    /// Hands one input to one shard and carries out what follows.
    pub(super) fn feed(&mut self, id: &ShardId, input: Input) {
        let actions = self.fleet.handle(id, input, self.now());
        self.carry_out(actions);
    }

    /// Carries out what the fleet asks for, and what follows from that, until nothing is left.
    pub(super) fn carry_out(&mut self, actions: Vec<FleetAction>) {
        let mut queue: VecDeque<FleetAction> = actions.into();
        while let Some(action) = queue.pop_front() {
            let follow = match action {
                FleetAction::Shard(action) => self.effect(action),
                FleetAction::SwitchTogether { masters } => self.switch_effect(&masters),
                FleetAction::Nginx => self.begin_nginx(),
                FleetAction::Progress { job, shard, generation, step, at } => {
                    let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
                    self.tell_progress(Progress { job, shard, generation, step: step.to_owned(), at_ms });
                    Vec::new()
                }
                FleetAction::Finished { job, kind, failure, shards, took } => {
                    self.job_finished(Ended { job, kind, failure, shards, took });
                    Vec::new()
                }
            };
            queue.extend(follow);
        }
    }

    fn effect(&mut self, action: Action) -> Vec<FleetAction> {
        match action {
            Action::Launch { master, sockets, blueprint } => self.launch_effect(&master, sockets, blueprint),
            Action::Prove { master } => {
                self.prove(&master);
                Vec::new()
            }
            Action::Switch { master } => self.switch_effect(&[master]),
            Action::WatchQuiet { master, why } => {
                self.watch_quiet(&master, why);
                Vec::new()
            }
            Action::Signal { master, signal, to } => {
                self.signal(&master, signal, to);
                Vec::new()
            }
            Action::Discard { master } => {
                self.discard(&master);
                Vec::new()
            }
            Action::Rescue { master } => self.rescue_effect(&master),
            Action::Lend { shard } => {
                self.lend(&shard);
                let left = self.look_at_left(&shard);
                self.fleet.handle(&shard, Input::Lent { left }, self.now())
            }
            Action::TakeBack { shard } => {
                self.take_back(&shard);
                Vec::new()
            }
            Action::CloseHeld { shard } => {
                self.close_held(&shard);
                Vec::new()
            }
            Action::Note { master, note } => {
                self.note(&master, &note);
                Vec::new()
            }
        }
    }

    fn launch_effect(&mut self, id: &MasterId, sockets: shard::Sockets, which: shard::Blueprint) -> Vec<FleetAction> {
        let generation = id.generation;
        let blueprint = match which {
            shard::Blueprint::Current => self.blueprint_for(&id.shard),
            shard::Blueprint::LastGood => self.good.get(&id.shard).cloned().or_else(|| self.blueprint_for(&id.shard)),
        };
        let result = match blueprint {
            Some(blueprint) => self.launch(id, sockets, &blueprint).map_err(|error| {
                self.bar_pool_of(id, &error);
                super::chain(&error)
            }),
            None => Err("the plan no longer has it".to_owned()),
        };
        let input = match result {
            Ok(pid) => Input::Launched { generation, pid },
            Err(why) => Input::LaunchFailed { generation, why },
        };
        self.fleet.handle(&id.shard, input, self.now())
    }

    /// Gives what the present plan makes of a shard.
    pub(super) fn blueprint_for(&self, id: &ShardId) -> Option<Rc<Blueprint>> {
        self.draft.blueprints.get(id).cloned()
    }

    /// Lets the sockets of proven masters take the public paths, and tells the shards.
    fn switch_effect(&mut self, ids: &[MasterId]) -> Vec<FleetAction> {
        let result = self.switch(ids);
        let mut follow = Vec::new();
        for id in ids {
            let generation = id.generation;
            let input = match &result {
                Ok(()) => Input::Switched { generation },
                Err(error) => Input::SwitchFailed { generation, why: super::chain(error) },
            };
            follow.extend(self.fleet.handle(&id.shard, input, self.now()));
        }
        follow
    }

    /// Lets the sockets of proven masters take the public paths, all or none; endpoints the plan no longer has leave.
    fn switch(&mut self, ids: &[MasterId]) -> Result<(), super::sockets::SocketError> {
        let sets: Vec<(&MasterId, SocketSet)> = ids.iter().filter_map(|id| Some((id, self.masters.get(id)?.sockets.clone()))).collect();
        let mut unix: Vec<Held> = Vec::new();
        for held in sets.iter().flat_map(|(_, set)| set).filter(|held| matches!(held.plan.endpoint, Endpoint::Unix(_))) {
            if !unix.iter().any(|other| Arc::ptr_eq(&other.listener, &held.listener)) {
                unix.push(held.clone());
            }
        }
        // What all of them have comes first: whoever finds the paths half taken can tell from it that all were proven.
        unix.sort_by_key(|held| held.plan.handover != Handover::Share);
        self.sockets.switch(&unix)?;
        for (id, set) in sets {
            let before = self.held.insert(id.shard.clone(), set.clone());
            if let Err(error) = self.point_addresses(&set) {
                // The unix paths have moved already; TCP connections still reach the old listener, which goes on serving them.
                tracing::error!(shard = %id.shard, gen = id.generation.0, error = %super::chain(&error), "connections were not steered");
            }
            for held in before.into_iter().flatten() {
                if self.sockets.is_public(&held) && !self.planned(&held.plan.endpoint) {
                    self.drop_endpoint(&held.plan.endpoint);
                }
            }
        }
        Ok(())
    }

    fn planned(&self, endpoint: &Endpoint) -> bool {
        self.draft.plan.shards.iter().flat_map(|shard| &shard.placements).any(|placement| placement.listener.endpoint == *endpoint)
    }

    /// Takes an endpoint out of use, at once or when no NGINX worker names it any more.
    pub(super) fn drop_endpoint(&mut self, endpoint: &Endpoint) {
        if self.phase != Phase::Stopping && self.nginx.names(endpoint) {
            self.sockets.retire_later(endpoint);
        } else {
            self.sockets.unpublish(endpoint);
        }
    }

    /// Steers every TCP address of a set to the shards that hold a listener for it.
    pub(super) fn point_addresses(&mut self, set: &SocketSet) -> Result<(), super::sockets::SocketError> {
        for held in set {
            let Endpoint::Tcp(address) = held.plan.endpoint else { continue };
            let targets: Vec<_> = self
                .held
                .iter()
                .filter(|(id, _)| !self.is_down(id) || set.iter().any(|mine| mine.bound_for.shard == **id))
                .filter_map(|(id, set)| Some((id, set.iter().find(|other| other.plan.endpoint == held.plan.endpoint)?)))
                .map(|(id, other)| (self.draft.plan.shard(id).and_then(|shard| shard.cpus.clone()), other.clone()))
                .collect();
            self.sockets.point(address, &targets)?;
        }
        Ok(())
    }

    /// Tells whether a shard neither serves nor is on its way to.
    pub(super) fn is_down(&self, id: &ShardId) -> bool {
        self.fleet.shard(id).is_none_or(|shard| matches!(shard.slot(), Slot::Empty | Slot::Pausing { .. }))
    }

    fn signal(&self, id: &MasterId, signal: Signal, to: Target) {
        let Some(master) = self.masters.get(id) else { return };
        let Some(pid) = master.pid else { return };
        let number = match signal {
            Signal::Quit => SystemSignal::SIGQUIT,
            Signal::Term => SystemSignal::SIGTERM,
            Signal::Kill => SystemSignal::SIGKILL,
        };
        let result = match to {
            Target::Master if master.alive => master.signal(&self.children, number),
            Target::Master | Target::Group => self.children.signal_group(pid, number),
        };
        if signal == Signal::Kill && to == Target::Group {
            self.kill_group(id);
        }
        if let Err(error) = result {
            let (name, generation) = (journal::signal_name(signal), id.generation.0);
            tracing::debug!(shard = %id.shard, gen = generation, signal = name, error = %error, "signal reached nobody");
        }
        fault::point("old master told to leave");
    }

    fn discard(&mut self, id: &MasterId) {
        self.quiet.retain(|watch| watch.master != *id);
        let directory = self.master_directory(id);
        if let Some(mut master) = self.masters.remove(id) {
            let set = std::mem::take(&mut master.sockets);
            drop(master);
            self.sockets.release(set);
        }
        if let Err(error) = std::fs::remove_dir_all(&directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(directory = %directory.display(), error = %error, "directory of a master was not removed");
        }
        self.sweep_groups();
        fault::point("old master discarded");
    }

    fn note(&mut self, id: &MasterId, note: &shard::Note) {
        let pid = self.masters.get(id).and_then(|master| master.pid).map(nix::unistd::Pid::as_raw);
        self.snapshot_dirty = true;
        journal::transition(id, note, pid);
        if *note == shard::Note::Serving
            && let Some(master) = self.masters.get(id)
        {
            self.good.insert(id.shard.clone(), Rc::clone(&master.blueprint));
            super::limits::verify(master, &self.settings.limits);
            self.health.began_serving(&id.shard);
            self.lend_anew();
        }
    }
}
