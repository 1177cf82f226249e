//! All shards, and the one job that may run over them.
//!
//! A job visits shards one at a time. A shard's *turn* hands it over (or starts it) and ends when the new master has served
//! for `settle` and the old one has been told to finish; requests that the old one still works on do not hold the job
//! (design, rule 10). The first failure ends the job: shards not yet visited stay as they are, and the old master of the
//! failed one still serves.
//!
//! A park, a drain and an apply end with an NGINX step, in which the include is brought up to date; a restart and a crash
//! never touch NGINX. The fleet does not know what NGINX is: it asks for the step and waits for its end.
//!
//! Pure, as `core::shard` is.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::shard::{Action, Input, LeavingStage, Shard, Slot, Stage, Timing, Wanted};
use crate::model::ids::{Generation, ShardId};
use crate::model::snapshot::{JobView, Verdict};
use crate::model::time::Moment;
use crate::model::wire::ShardRuns;

/// How long a turn waits for the old master to fall quiet before the job goes on without that. With keep-alive NGINX has
/// closed its last connection 3 s after the switch (P25); the rest is for queues that take long to empty.
pub const QUIET_PATIENCE: Duration = Duration::from_secs(10);

/// What a job is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobKind {
    /// A rolling restart.
    Restart,
    /// Bring what runs in line with a new plan.
    Apply,
    /// Take a shard down, its listeners held.
    Park,
    /// Bring a shard up.
    Unpark,
    /// Take a shard out of the upstream, then down.
    Drain,
    /// Replace a hung master.
    Heal,
}

impl JobKind {
    /// Gives the verb as shown.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Apply => "reload",
            Self::Park => "park",
            Self::Unpark => "unpark",
            Self::Drain => "drain",
            Self::Heal => "heal",
        }
    }
}

/// A job as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrder {
    /// What it is for.
    pub kind: JobKind,
    /// The shards it visits, in order.
    pub shards: Vec<ShardId>,
    /// Shards that leave for good once NGINX no longer names them.
    pub retire: Vec<ShardId>,
    /// Whether NGINX has to be brought up to date.
    pub nginx: NginxStep,
}

/// When a job brings NGINX up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NginxStep {
    /// Never.
    None,
    /// Before the shards are visited: their names leave the upstream first.
    First,
    /// After they have been visited.
    Last,
}

/// What the fleet asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetAction {
    /// Something a shard asks for.
    Shard(Action),
    /// Bring NGINX up to date and report with [`Fleet::nginx_done`].
    Nginx,
    /// A job took a step.
    Progress {
        /// The job as it stands.
        job: JobView,
        /// The shard, when the step is one of a shard.
        shard: Option<ShardId>,
        /// The generation, when the step is one of a master.
        generation: Option<Generation>,
        /// The step's word, as in `model::wire::Progress`.
        step: &'static str,
        /// Time since the job began.
        at: Duration,
    },
    /// A job ended.
    Finished {
        /// Its number.
        job: u64,
        /// What it was for.
        kind: JobKind,
        /// Why it stopped early.
        failure: Option<JobFailure>,
        /// What its shards run now.
        shards: Vec<ShardRuns>,
        /// How long it took.
        took: Duration,
    },
}

/// Why a job stopped early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// The shard whose turn it was.
    pub shard: Option<ShardId>,
    /// The generation that failed.
    pub generation: Option<Generation>,
    /// Why.
    pub why: String,
}

/// Another job is under way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("job {} ({}) is under way: {}", .0.job, .0.verb, .0.step)]
pub struct Busy(pub JobView);

#[derive(Debug, Clone)]
struct Job {
    number: u64,
    order: JobOrder,
    started: Moment,
    waiting: VecDeque<ShardId>,
    done: Vec<ShardId>,
    stage: JobStage,
    failure: Option<JobFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum JobStage {
    Nginx { first: NginxStep },
    Turn { shard: ShardId, from: Option<Generation>, step: TurnStep },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnStep {
    /// A start that was under way when the turn came is let finish; then the shard is rolled.
    Settling { rolled: Rolled },
    /// The shard is on its way down.
    Emptying,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rolled {
    Yes,
    NotYet,
}

/// All shards of an instance.
#[derive(Debug, Clone)]
pub struct Fleet {
    shards: BTreeMap<ShardId, Shard>,
    timing: Timing,
    settle: Duration,
    job: Option<Job>,
    jobs: u64,
}

impl Fleet {
    /// Makes a fleet with no shards.
    pub fn new(timing: Timing, settle: Duration) -> Self {
        Self { shards: BTreeMap::new(), timing, settle, job: None, jobs: 0 }
    }

    /// Takes new time-outs.
    pub fn set_timing(&mut self, timing: Timing, settle: Duration) {
        self.timing = timing;
        self.settle = settle;
        for shard in self.shards.values_mut() {
            shard.set_timing(timing);
        }
    }

    /// Gives every shard in order.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.values()
    }

    /// Finds a shard.
    pub fn shard(&self, id: &ShardId) -> Option<&Shard> {
        self.shards.get(id)
    }

    /// Says that the configuration of a shard differs from the one it last served with.
    pub fn blueprint_changed(&mut self, id: &ShardId) {
        if let Some(shard) = self.shards.get_mut(id) {
            shard.blueprint_changed();
        }
    }

    /// Adds a shard if it is new, and wants it up.
    #[must_use]
    pub fn start(&mut self, id: &ShardId, now: Moment) -> Vec<FleetAction> {
        let timing = self.timing;
        self.shards.entry(id.clone()).or_insert_with(|| Shard::new(id.clone(), timing));
        self.handle(id, Input::Start, now)
    }

    /// Forgets shards that are retired and gone.
    pub fn forget_gone(&mut self) {
        self.shards.retain(|_, shard| shard.wanted() != Wanted::Retired || !shard.is_gone());
    }

    /// Tells whether nothing is alive or on its way.
    pub fn is_gone(&self) -> bool {
        self.shards.values().all(Shard::is_gone)
    }

    /// Gives the job under way.
    pub fn job(&self) -> Option<JobView> {
        self.job.as_ref().map(|job| self.view(job))
    }

    /// Gives the next moment at which [`Fleet::on_time`] has something to do.
    pub fn deadline(&self) -> Option<Moment> {
        self.shards.values().filter_map(Shard::deadline).chain(self.turn_deadline()).min()
    }

    /// Hands one input to one shard and lets the job follow.
    #[must_use]
    pub fn handle(&mut self, id: &ShardId, input: Input, now: Moment) -> Vec<FleetAction> {
        let Some(shard) = self.shards.get_mut(id) else { return Vec::new() };
        let mut actions: Vec<FleetAction> = Vec::new();
        for action in shard.handle(input, now) {
            self.push(action, now, &mut actions);
        }
        self.advance(now, &mut actions);
        actions
    }

    /// Lets time pass for everyone.
    #[must_use]
    pub fn on_time(&mut self, now: Moment) -> Vec<FleetAction> {
        let due: Vec<ShardId> =
            self.shards.iter().filter(|(_, shard)| shard.deadline().is_some_and(|at| at <= now)).map(|(id, _)| id.clone()).collect();
        let mut actions = Vec::new();
        for id in due {
            actions.extend(self.handle(&id, Input::Time, now));
        }
        self.advance(now, &mut actions);
        actions
    }

    /// Begins a job.
    ///
    /// # Errors
    ///
    /// Another one is under way.
    pub fn begin(&mut self, order: JobOrder, now: Moment) -> Result<(u64, Vec<FleetAction>), Busy> {
        if let Some(job) = &self.job {
            return Err(Busy(self.view(job)));
        }
        self.jobs += 1;
        let waiting: VecDeque<ShardId> = order.shards.iter().cloned().collect();
        let stage = JobStage::Nginx { first: NginxStep::First };
        let first = order.nginx == NginxStep::First;
        self.job = Some(Job { number: self.jobs, order, started: now, waiting, done: Vec::new(), stage, failure: None });
        let mut actions = Vec::new();
        if first {
            self.progress(Who(None, None), "nginx", now, &mut actions);
            actions.push(FleetAction::Nginx);
        } else {
            self.next_turn(now, &mut actions);
            self.advance(now, &mut actions);
        }
        Ok((self.jobs, actions))
    }

    /// Hears that the NGINX step has ended, well or badly: PHP never waits for NGINX.
    #[must_use]
    pub fn nginx_done(&mut self, now: Moment) -> Vec<FleetAction> {
        let mut actions = Vec::new();
        let Some(JobStage::Nginx { first }) = self.job.as_ref().map(|job| job.stage.clone()) else { return actions };
        if first == NginxStep::First {
            self.next_turn(now, &mut actions);
            self.advance(now, &mut actions);
        } else {
            self.finish(now, &mut actions);
        }
        actions
    }

    /// Ends the job if there is one, and tells every shard to leave for good.
    #[must_use]
    pub fn stop(&mut self, now: Moment) -> Vec<FleetAction> {
        let mut actions = Vec::new();
        if let Some(job) = &mut self.job {
            job.failure = Some(JobFailure { shard: None, generation: None, why: "the supervisor is stopping".to_owned() });
            self.finish(now, &mut actions);
        }
        let ids: Vec<ShardId> = self.shards.keys().cloned().collect();
        for id in ids {
            actions.extend(self.handle(&id, Input::Retire, now));
        }
        actions
    }

    /// Gives the verdict that the machine alone can give; `None` when the shard serves and health decides.
    pub fn verdict(&self, id: &ShardId) -> Option<Verdict> {
        let Some(shard) = self.shards.get(id) else { return Some(Verdict::Empty) };
        if shard.serving().is_some() {
            return None;
        }
        Some(match (shard.wanted(), shard.slot()) {
            (Wanted::Parked, _) => Verdict::Parked,
            (Wanted::Retired, _) => Verdict::Empty,
            (Wanted::Up, _) if shard.is_halted() => Verdict::Halted,
            (Wanted::Up, Slot::Pausing { .. }) => Verdict::Flapping,
            (Wanted::Up, _) if shard.failures() > 0 => Verdict::Flapping,
            (Wanted::Up, _) => Verdict::Starting,
        })
    }

    fn view(&self, job: &Job) -> JobView {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        JobView {
            job: job.number,
            verb: job.order.kind.word().to_owned(),
            done: count(job.done.len()),
            total: count(job.order.shards.len()),
            step: self.step(job),
        }
    }

    fn step(&self, job: &Job) -> String {
        let JobStage::Turn { shard, .. } = &job.stage else { return "nginx".to_owned() };
        let Some(machine) = self.shards.get(shard) else { return shard.to_string() };
        if let Some(birth) = machine.birth() {
            let what = match birth.stage {
                Stage::Launching => "starting",
                Stage::AwaitingReady => "waiting for readiness",
                Stage::Proving => "verifying",
                Stage::Switching => "switching",
            };
            return format!("{shard}#{}: {what}", birth.generation);
        }
        match machine.serving() {
            Some((generation, _)) => format!("{shard}#{generation}: settling"),
            None => format!("{shard}: down"),
        }
    }

    /// Passes a shard's action on; a note of the shard whose turn it is becomes progress.
    fn push(&mut self, action: Action, now: Moment, actions: &mut Vec<FleetAction>) {
        if let Action::Note { master, note } = &action
            && let Some(step) = step_word(note)
            && matches!(&self.job, Some(Job { stage: JobStage::Turn { shard, .. }, .. }) if shard == &master.shard)
        {
            self.progress(Who(Some(master.shard.clone()), Some(master.generation)), step, now, actions);
        }
        actions.push(FleetAction::Shard(action));
    }

    fn progress(&self, who: Who, step: &'static str, now: Moment, actions: &mut Vec<FleetAction>) {
        if let Some(job) = &self.job {
            let Who(shard, generation) = who;
            actions.push(FleetAction::Progress { job: self.view(job), shard, generation, step, at: now - job.started });
        }
    }

    fn next_turn(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        loop {
            let Some(job) = &mut self.job else { return };
            let Some(id) = job.waiting.pop_front() else {
                self.after_turns(now, actions);
                return;
            };
            let kind = job.order.kind.clone();
            if self.begin_turn(&id, &kind, now, actions) == Turn::Begun {
                return;
            }
            if let Some(job) = &mut self.job {
                job.done.push(id.clone());
            }
            self.progress(Who(Some(id), None), "skipped", now, actions);
        }
    }

    fn begin_turn(&mut self, id: &ShardId, kind: &JobKind, now: Moment, actions: &mut Vec<FleetAction>) -> Turn {
        let timing = self.timing;
        let shard = self.shards.entry(id.clone()).or_insert_with(|| Shard::new(id.clone(), timing));
        let from = shard.serving().map(|(generation, _)| generation);
        let parked = shard.wanted() == Wanted::Parked;
        let (input, step) = match kind {
            JobKind::Park | JobKind::Drain => (Input::Park, TurnStep::Emptying),
            JobKind::Restart | JobKind::Apply | JobKind::Heal if parked => return Turn::Skipped,
            JobKind::Restart | JobKind::Apply | JobKind::Heal => match shard.slot() {
                Slot::Serving { .. } => (Input::Roll, TurnStep::Settling { rolled: Rolled::Yes }),
                Slot::HandingOver { .. } | Slot::Starting(_) => (Input::Time, TurnStep::Settling { rolled: Rolled::NotYet }),
                Slot::Empty | Slot::Pausing { .. } => (Input::Start, TurnStep::Settling { rolled: Rolled::Yes }),
            },
            JobKind::Unpark => (Input::Start, TurnStep::Settling { rolled: Rolled::Yes }),
        };
        if let Some(job) = &mut self.job {
            job.stage = JobStage::Turn { shard: id.clone(), from, step };
        }
        let Some(shard) = self.shards.get_mut(id) else { return Turn::Skipped };
        for action in shard.handle(input, now) {
            self.push(action, now, actions);
        }
        Turn::Begun
    }

    /// Looks whether the turn under way has ended, well or badly.
    fn advance(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        while let Some(Job { stage: JobStage::Turn { shard, from, step }, .. }) = &self.job {
            let (id, from, step) = (shard.clone(), *from, *step);
            match self.outcome(&id, from, step, now) {
                Outcome::UnderWay => return,
                Outcome::RollNow => self.roll_late(&id, now, actions),
                Outcome::Done => {
                    if let Some(job) = &mut self.job {
                        job.done.push(id.clone());
                    }
                    let generation = self.shards.get(&id).and_then(|shard| shard.serving().map(|(generation, _)| generation));
                    self.progress(Who(Some(id), generation), "done", now, actions);
                    self.next_turn(now, actions);
                }
                Outcome::Failed(failure) => {
                    if let Some(job) = &mut self.job {
                        job.failure = Some(failure);
                        job.waiting.clear();
                    }
                    // NGINX may have to learn of the shards that did change.
                    self.after_turns(now, actions);
                }
            }
        }
    }

    fn roll_late(&mut self, id: &ShardId, now: Moment, actions: &mut Vec<FleetAction>) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        let from = shard.serving().map(|(generation, _)| generation);
        let rolled = shard.handle(Input::Roll, now);
        if let Some(job) = &mut self.job {
            job.stage = JobStage::Turn { shard: id.clone(), from, step: TurnStep::Settling { rolled: Rolled::Yes } };
        }
        for action in rolled {
            self.push(action, now, actions);
        }
    }

    fn outcome(&self, id: &ShardId, from: Option<Generation>, step: TurnStep, now: Moment) -> Outcome {
        let Some(shard) = self.shards.get(id) else { return Outcome::Done };
        match step {
            TurnStep::Emptying => {
                let leaving = shard.leaving().iter().any(|leaving| !matches!(leaving.stage(), LeavingStage::Quit { .. }));
                if matches!(shard.slot(), Slot::Empty) && !leaving { Outcome::Done } else { Outcome::UnderWay }
            }
            TurnStep::Settling { rolled } => match shard.slot() {
                Slot::Serving { .. } if rolled == Rolled::NotYet => Outcome::RollNow,
                Slot::Serving { generation, .. } if Some(*generation) == from => Outcome::Failed(failure_of(shard)),
                Slot::Serving { since, .. } => self.settled(shard, *since, now),
                Slot::Pausing { .. } | Slot::Empty => Outcome::Failed(failure_of(shard)),
                Slot::Starting(_) | Slot::HandingOver { .. } => Outcome::UnderWay,
            },
        }
    }

    fn settled(&self, shard: &Shard, since: Moment, now: Moment) -> Outcome {
        let quieting = shard.leaving().iter().any(|leaving| matches!(leaving.stage(), LeavingStage::Quieting { detained: false, .. }));
        let settled = now >= since.after(self.settle);
        let patient = now < since.after(QUIET_PATIENCE);
        if settled && !(quieting && patient) { Outcome::Done } else { Outcome::UnderWay }
    }

    fn turn_deadline(&self) -> Option<Moment> {
        let JobStage::Turn { shard, step: TurnStep::Settling { .. }, .. } = &self.job.as_ref()?.stage else { return None };
        let shard = self.shards.get(shard)?;
        let Slot::Serving { since, .. } = shard.slot() else { return None };
        let quieting = shard.leaving().iter().any(|leaving| matches!(leaving.stage(), LeavingStage::Quieting { detained: false, .. }));
        Some(since.after(if quieting { QUIET_PATIENCE.max(self.settle) } else { self.settle }))
    }

    fn after_turns(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        let Some(job) = &mut self.job else { return };
        if job.order.nginx == NginxStep::Last {
            job.stage = JobStage::Nginx { first: NginxStep::Last };
            self.progress(Who(None, None), "nginx", now, actions);
            actions.push(FleetAction::Nginx);
        } else {
            self.finish(now, actions);
        }
    }

    fn finish(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        let Some(job) = self.job.take() else { return };
        let shards = job.order.shards.iter().map(|id| self.runs(id, &job)).collect();
        let retire = if job.failure.is_none() { job.order.retire.clone() } else { Vec::new() };
        actions.push(FleetAction::Finished {
            job: job.number,
            kind: job.order.kind,
            failure: job.failure,
            shards,
            took: now - job.started,
        });
        for id in retire {
            actions.extend(self.handle(&id, Input::Retire, now));
        }
    }

    fn runs(&self, id: &ShardId, job: &Job) -> ShardRuns {
        let generation = self.shards.get(id).and_then(|shard| shard.serving().map(|(generation, _)| generation));
        let failed = job.failure.as_ref().is_some_and(|failure| failure.shard.as_ref() == Some(id));
        let outcome = if failed {
            "failed"
        } else if job.done.contains(id) {
            "changed"
        } else {
            "untouched"
        };
        ShardRuns { shard: id.clone(), generation, outcome: outcome.to_owned() }
    }
}

/// Whose step it is.
struct Who(Option<ShardId>, Option<Generation>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Begun,
    Skipped,
}

enum Outcome {
    UnderWay,
    RollNow,
    Done,
    Failed(JobFailure),
}

fn failure_of(shard: &Shard) -> JobFailure {
    let why = shard.last_failure().unwrap_or("it went down").to_owned();
    JobFailure { shard: Some(shard.id().clone()), generation: Some(shard.last_generation()), why }
}

fn step_word(note: &super::shard::Note) -> Option<&'static str> {
    use super::shard::Note;
    match note {
        Note::Starting => Some("binding"),
        Note::Launched => Some("starting"),
        Note::Proving => Some("verifying"),
        Note::Switching => Some("switching"),
        Note::Serving => Some("settling"),
        Note::Leaving => Some("draining"),
        Note::Failed(_) | Note::Crashed(_) | Note::Halted(_) => Some("failed"),
        Note::Quitting | Note::Hardened(_) | Note::Gone | Note::Pausing | Note::Parked => None,
    }
}
