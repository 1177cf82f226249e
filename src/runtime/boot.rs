//! The supervisor's life: what is set up before the first master, the loop, and the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::adopt;
use super::apply::{Reading, timing};
use super::calls::Pending;
use super::draft::{self, Draft, ReadingInput, Trials};
use super::events::Event;
use super::fault;
use super::handoff::{self, Arrival, ControlSocket, Inheritance};
use super::health::HealthBook;
use super::home::{Home, bind_control};
use super::instance::{leave_instance, take_instance};
use super::nginx::NginxBook;
use super::paths::PathBook;
use super::quiet::Kept;
use super::quiet::QUIET_POLL;
use super::sockets::Sockets;
use super::supervisor::{Phase, Supervisor};
use super::telling::told;
use super::upgrade::LOOK;
use crate::core::fleet::Fleet;
use crate::core::shard::{Input, Shard, Slot, Wanted};
use crate::edge::control::server::{Call, ControlError};
use crate::edge::service::Service;
use crate::edge::{log, settings as settings_file};
use crate::model::ids::{MasterId, ShardId};
use crate::model::problem::{Problem, Severity};
use crate::model::time::Moment;
use crate::sys::children::{Children, Subreaper};
use crate::sys::directory::Batch;
use crate::sys::handoff::Deaf;
use crate::sys::limits::make_room_for_files;
use crate::sys::lock::{InstanceLock, LockError};
use crate::sys::signals::{Received, Signals};

/// How many events may wait: tasks wait for room, and there are a few for each master.
const EVENTS: usize = 1024;

/// How long control clients have for their last line at the end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How many of php-fpm's last lines are told with a failure: the cause, and what it led to.
const LAST_LINES: usize = 3;

/// How often the snapshot is brought up to date while nothing happens and somebody looks.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);

/// Says why the supervisor did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Settings or pool files are wrong.
    #[error("{} problems in settings and pool files", .0.len())]
    Problems(Vec<Problem>),
    /// Another supervisor runs this instance, or its lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A newer version wrote the state of the masters that run.
    #[error("{} has version {version}, this polyfpm reads up to {}", path.display(), super::state::VERSION)]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Something of the system was refused.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The control socket cannot be had.
    #[error("open the control socket {}", path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: ControlError,
    },
}

/// Runs the supervisor until it is told to stop and nothing is left.
///
/// # Errors
/// It could not start; nothing runs then.
pub fn run(file: &Path) -> Result<(), RunError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| RunError::System { what, source }
    };
    // Before anything else opens descriptors: their numbers are all that is known of what came.
    let inheritance = Inheritance::receive();
    // Thousands of pools need thousands of descriptors.
    let room = make_room_for_files();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // Signals are for the one thread that can block them when that matters.
    let builder = builder.enable_all().on_thread_start(Deaf::for_ever);
    let runtime = builder.build().map_err(system("start the event loop"))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        // Before anything else: an early signal must find somebody who hears it.
        let signals = Signals::new().map_err(system("listen for signals"))?;
        let settings = settings_file::load(file).map_err(RunError::Problems)?.settings;
        log::start(settings.log).map_err(|error| RunError::System { what: error.to_string(), source: std::io::Error::other(error) })?;
        log::end_on_panic();
        if let Err(error) = room {
            tracing::warn!(error = %error, "limit of open files was not raised");
        }
        let Inheritance { lock, control, arrival, masters, mut kept, unusable } = inheritance;
        if let Some(why) = unusable {
            tracing::warn!(why, "what was handed over was not usable; masters are adopted by their files");
        }
        let mut lock = Some(take_instance(&settings, lock).await?);
        if let Some((path, version)) = adopt::of_newer_version(&settings.runtime_directory) {
            return Err(RunError::Newer { path, version });
        }
        let resumed = Children::resume(Subreaper::Yes, &masters).map_err(system("become the parent of orphans"))?;
        let (children, resumed) = resumed;
        kept.children = resumed.into_iter().map(|child| (child.pid(), child)).collect();
        fault::point("children resumed");
        let input = ReadingInput {
            file: file.to_owned(),
            previous: None,
            former_plan: adopt::former_plan(&settings.runtime_directory),
            barred: Vec::new(),
            serving: BTreeMap::new(),
            proven: BTreeSet::new(),
            taken: BTreeSet::new(),
            trials: Trials::None,
        };
        let outcome = match draft::read(&children, &input).await {
            Ok(draft) => supervise(draft, children, signals, Came { lock: &mut lock, control, arrival, kept }).await,
            Err(unread) => Err(RunError::Problems(unread.problems)),
        };
        if let Some(lock) = lock {
            leave_instance(lock, &settings);
        }
        outcome
    })
}

/// What the supervisor begins with.
struct Came<'a> {
    /// Taken, and there again at the end.
    lock: &'a mut Option<InstanceLock>,
    control: Option<ControlSocket>,
    arrival: Option<Arrival>,
    kept: handoff::Kept,
}

/// Supervises until everything is gone; the lock comes back at the end.
async fn supervise(draft: Draft, children: Children, mut signals: Signals, came: Came<'_>) -> Result<(), RunError> {
    let (events, mut heard) = mpsc::channel(EVENTS);
    let (calls, mut called) = mpsc::channel::<Call>(16);
    let mut supervisor = Supervisor::new(draft, children, events);
    (supervisor.inherited, supervisor.arrival) = (came.kept, came.arrival);
    let server = bind_control(&supervisor, came.control)?;
    let Some(taken) = came.lock.take() else { return Ok(()) };
    let mut home = Home::new(taken, server, calls, &mut supervisor);
    supervisor.take_up();
    while !supervisor.is_over() {
        let wake = supervisor.next_wake();
        tokio::select! {
            Some(event) = heard.recv() => {
                supervisor.hear(event);
                while let Ok(event) = heard.try_recv() {
                    supervisor.hear(event);
                }
            }
            Some(call) = called.recv() => supervisor.call(call),
            signal = signals.next() => supervisor.signalled(signal),
            () = tokio::time::sleep(wake) => {}
        }
        if supervisor.now() >= supervisor.paths.next_look() {
            home.keep_up(&mut supervisor);
        }
        supervisor.tick();
        if supervisor.is_exec_due() && heard.is_empty() && called.is_empty() {
            supervisor.exec(&home, &signals);
        }
    }
    supervisor.clean_up();
    // The server ends when nobody takes calls any more; whoever asked for the stop hears of its end first.
    drop(called);
    *came.lock = Some(home.close(LAST_WORDS).await);
    Ok(())
}

impl Supervisor {
    fn new(draft: Draft, children: Children, events: super::Events) -> Self {
        let (settings, tolerated) = (Rc::clone(&draft.settings), draft.complaints.clone());
        let fleet = Fleet::new(timing(&settings), settings.restart.settle);
        let empty = super::picture::nothing_yet(&settings);
        let (snapshot, _) = watch::channel(Arc::new(empty));
        Self {
            fleet,
            kept: Kept::Known(draft.keepalive.clone()),
            draft: Rc::new(draft),
            sockets: Sockets::default(),
            masters: BTreeMap::new(),
            held: BTreeMap::new(),
            good: BTreeMap::new(),
            tolerated,
            quiet: Vec::new(),
            health: HealthBook::default(),
            nginx: NginxBook::new(),
            call: None,
            stops: Vec::new(),
            status_told: String::new(),
            reload_told: false,
            drained: BTreeSet::new(),
            pending: Pending::Nothing,
            phase: Phase::Booting,
            snapshot,
            events,
            children,
            started: Instant::now(),
            tasks: Reading::default(),
            service: Service::from_environment().unwrap_or_else(|error| {
                tracing::warn!(error = %super::chain(&error), "service manager is not told");
                Service::absent()
            }),
            watcher: None,
            drawn: super::picture::DrawnPools::default(),
            snapshot_due: Moment::START,
            alive_due: Moment::START,
            snapshot_dirty: true,
            layout: super::pinning::LayoutBook::default(),
            groups: super::groups::GroupBook::default(),
            written: None,
            unwritten: BTreeMap::new(),
            barred: super::barred::Barred::default(),
            takeover: None,
            handback: None,
            waiting_takeover: None,
            paths: PathBook::new(&settings.runtime_directory),
            upgrade: None,
            gate: None,
            arrival: None,
            inherited: handoff::Kept::default(),
            adoption: adopt::AdoptionCount::default(),
            settings,
        }
    }

    /// Takes over what an earlier supervisor left, and starts what is missing.
    fn take_up(&mut self) {
        super::leftovers::sweep(&self.draft.plan);
        self.watch_files();
        self.recall_takeover();
        self.adoption = self.adopt_all();
        self.sweep_groups();
        fault::point("masters adopted");
        if self.adoption != adopt::AdoptionCount::default() {
            let adopt::AdoptionCount { adopted, orphaned, refused } = self.adoption;
            tracing::info!(adopted, orphaned, refused, "masters of an earlier supervisor taken over");
        }
        self.start_all();
    }

    /// Starts every shard that has pools.
    fn start_all(&mut self) {
        for problem in &self.draft.problems {
            match problem.severity {
                Severity::Note => tracing::info!(problem = %problem, "configuration note"),
                Severity::Warning | Severity::Error => tracing::warn!(problem = %problem, "configuration problem"),
            }
        }
        for bad in &self.draft.plan.quarantined {
            tracing::error!(pool = %bad.pool, problem = %bad.problem, "pool kept out");
        }
        let parked = |id: &ShardId| self.fleet.shard(id).is_some_and(|shard| shard.wanted() == Wanted::Parked);
        let ids: Vec<ShardId> = self.draft.blueprints.keys().filter(|id| !parked(id)).cloned().collect();
        if self.masters.is_empty() {
            let shards = ids.iter().filter_map(|id| self.draft.blueprints.get(id));
            self.sockets.bind_ahead(shards.flat_map(|blueprint| &blueprint.plan.placements).map(|placement| &placement.listener));
        }
        for id in ids {
            let actions = self.fleet.start(&id, self.now());
            self.carry_out(actions);
        }
        self.sockets.end_ahead();
    }

    /// Takes one event of a task.
    fn hear(&mut self, event: Event) {
        match event {
            Event::Exited { master, exit } => self.exited(&master, exit),
            Event::GroupGone { master } => {
                fault::point("processes gone");
                let generation = master.generation;
                self.feed_master(&master, Input::Gone { generation });
            }
            Event::Ready { master } => {
                fault::point("ready");
                self.master_ready(&master);
            }
            Event::Heartbeat { master, text } => self.heartbeat(&master, &text),
            Event::Proven { master, result } => {
                fault::point("proven");
                let generation = master.generation;
                let input = match result {
                    Ok(installation) => {
                        if let Some(installation) = installation {
                            self.loaded(&master, *installation);
                        }
                        Input::Proven { generation }
                    }
                    Err(why) => Input::NotProven { generation, why: self.with_last_words(&master, why) },
                };
                self.feed_master(&master, input);
            }
            Event::Sampled { master, sample } => self.sampled(&master, *sample),
            Event::Drafted(result) => self.drafted(*result),
            Event::Previewed(read) => {
                let (result, replies) = *read;
                self.previewed(result, replies);
            }
            Event::Nginx(report) => self.nginx_reported(*report),
            Event::NginxSettled { reload } => self.nginx_settled(reload),
            Event::Kept { job, waits } => self.kept.answered(job, waits),
            Event::Found(found) => self.foreign_found(*found),
            Event::Handed(result) => self.handed(result),
            Event::Passed(result) => self.step_passed(result),
            Event::Examined(result) => self.examined(*result),
            Event::Changed(paths) => self.files_changed(&paths),
        }
    }

    fn exited(&mut self, id: &MasterId, exit: crate::sys::children::Exit) {
        fault::point("master ended");
        let why = super::launch::exit_words(exit);
        let why = if exit.success() { why } else { self.with_last_words(id, why) };
        if let Some(master) = self.masters.get_mut(id) {
            master.alive = false;
        }
        let generation = id.generation;
        self.feed_master(id, Input::Died { generation, why });
    }

    /// Adds the last lines php-fpm wrote to a failure.
    fn with_last_words(&self, id: &MasterId, why: String) -> String {
        let words = self.masters.get(id).map(super::master::Master::last_words).unwrap_or_default();
        let last = words.get(words.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        if last.is_empty() { why } else { format!("{why}; php-fpm: {}", last.join("; ")) }
    }

    fn signalled(&mut self, signal: Received) {
        tracing::info!(signal = ?signal, "signal received");
        match signal {
            Received::Term | Received::Int | Received::Quit => self.stop(),
            Received::Hup => {
                self.barred.clear();
                self.reload(None);
            }
            Received::Usr1 => drop(self.reopen_logs()),
            Received::Usr2 => self.restart(&crate::model::wire::Selection::default(), None),
        }
    }

    /// Does what is due, after every event and at every deadline.
    fn tick(&mut self) {
        let now = self.now();
        if !self.quiet.is_empty() {
            self.look_for_quiet();
        }
        let actions = self.fleet.on_time(now);
        self.carry_out(actions);
        if now >= self.health.next_look() {
            self.look_at_health();
        }
        if now >= self.layout.next_look() {
            self.look_at_layout();
        }
        if now >= self.paths.next_look() {
            self.look_at_paths();
        }
        if let Some(interval) = self.service.watchdog_interval()
            && now >= self.alive_due
        {
            self.alive_due = now.after(interval);
            told(self.service.alive());
        }
        self.finish_boot();
        self.take_up_pending();
        self.advance_takeover();
        self.advance_handback();
        self.look_at_upgrade();
        if self.snapshot_due().is_some_and(|due| now >= due) || std::mem::take(&mut self.snapshot_dirty) {
            self.snapshot_due = now.after(SNAPSHOT_PERIOD);
            self.publish_snapshot();
            self.write_state();
            self.tell_status();
        }
    }

    /// READY when every shard has served, or failed once: a bad shard must not hold the unit's start for ever.
    fn finish_boot(&mut self) {
        if self.phase != Phase::Booting {
            return;
        }
        // Of an earlier supervisor's shards some may be parked, or be in no plan any more.
        let is_wanted = |shard: &Shard| shard.wanted() == Wanted::Up && self.draft.blueprints.contains_key(shard.id());
        let is_settled = |shard: &Shard| matches!(shard.slot(), Slot::Serving { .. }) || shard.failures() > 0;
        let settled = self.fleet.shards().all(|shard| !is_wanted(shard) || is_settled(shard));
        if settled {
            self.phase = Phase::Running;
            tracing::info!(took_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX), "instance serving");
            self.tell_ready();
            // Until here each master's own record says where its pools are; READY does not wait for more.
            self.write_plan();
            self.arrived();
            let follow = self.begin_nginx();
            self.carry_out(follow);
            if self.fleet.shards().any(|shard| shard.failures() > 0) {
                // The start was the trial; the reading that follows names the bad pools and starts the shard without them.
                self.reload(None);
                return;
            }
            self.keep_pinned();
            let order = self.difference();
            if !order.shards.is_empty() || !order.retire.is_empty() {
                // Adopted masters of another configuration are handed over.
                self.begin(order, None);
            }
        }
    }

    fn next_wake(&self) -> Duration {
        let now = self.now();
        let mut next = self.health.next_look().min(self.layout.next_look()).min(self.paths.next_look());
        if let Some(due) = self.snapshot_due() {
            next = next.min(due);
        }
        if let Some(deadline) = self.fleet.deadline() {
            next = next.min(deadline);
        }
        if self.service.watchdog_interval().is_some() {
            next = next.min(self.alive_due);
        }
        let until = next.since(now);
        let until = if self.watches_for_upgrade() { until.min(LOOK) } else { until };
        if self.quiet.is_empty() { until } else { until.min(QUIET_POLL) }
    }

    fn is_over(&self) -> bool {
        self.phase == Phase::Stopping && self.fleet.is_gone() && self.masters.is_empty()
    }

    fn clean_up(&mut self) {
        let batch = Batch::begin();
        for endpoint in self.sockets.endpoints() {
            self.sockets.unpublish(&endpoint);
        }
        drop(batch);
        self.held.clear();
        self.paths.clear();
        super::leftovers::sweep_own(&self.settings.listen.directory);
        for replies in self.stops.drain(..) {
            replies.finish(crate::model::wire::Reply::Done { message: "stopped".to_owned(), shards: Vec::new() });
        }
        let masters = self.settings.runtime_directory.join("m");
        if let Err(error) = std::fs::remove_dir_all(&masters)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %masters.display(), error = %error, "directory of masters was not removed");
        }
        for file in ["state.json", "plan.json", super::handback::FORMER, super::handback::INHERIT, "handback.log"] {
            drop(std::fs::remove_file(self.settings.runtime_directory.join(file)));
        }
        tracing::info!("stopped");
    }
}
