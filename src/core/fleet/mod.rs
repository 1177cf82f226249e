//! All shards, and the one job that may run over them.
//!
//! A job visits shards one at a time. A shard's *turn* hands it over (or starts it) and ends when the new master has served
//! for `settle` and the old one has been told to finish; requests that the old one still works on do not hold the job
//! (design, rule 10). The first failure ends the job: shards not yet visited stay as they are, and the old master of the
//! failed one still serves.
//!
//! Shards that share a listener may have one turn in common: see `together`.
//!
//! A park, a drain and an apply end with an NGINX step, in which the include is brought up to date; a restart and a crash
//! never touch NGINX. The fleet does not know what NGINX is: it asks for the step and waits for its end.
//!
//! Pure, as `core::shard` is.

mod job;
#[cfg(test)]
mod tests;
mod together;
mod turn;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::shard::{Action, Adopted, Input, Shard, Slot, Timing, Wanted};
use crate::model::ids::{Generation, ShardId};
use crate::model::snapshot::{JobView, Verdict};
use crate::model::time::Moment;
use job::{Job, JobStage, Who, step_word};
pub use turn::QUIET_PATIENCE;
pub use words::{Busy, FleetAction, JobFailure, JobKind, JobOrder, NginxStep};

/// All shards of an instance.
#[derive(Debug, Clone)]
pub struct Fleet {
    shards: BTreeMap<ShardId, Shard>,
    timing: Timing,
    settle: Duration,
    job: Option<Job>,
    jobs: u64,
    stopping: bool,
    /// The last generations of shards that were forgotten: late reports of their masters must not meet a namesake.
    forgotten: BTreeMap<ShardId, Generation>,
}

impl Fleet {
    /// Makes a fleet with no shards.
    pub fn new(timing: Timing, settle: Duration) -> Self {
        Self { shards: BTreeMap::new(), timing, settle, job: None, jobs: 0, stopping: false, forgotten: BTreeMap::new() }
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

    /// Adds a shard if it is new, and wants it up. After [`Fleet::stop`] nothing is started any more.
    #[must_use]
    pub fn start(&mut self, id: &ShardId, now: Moment) -> Vec<FleetAction> {
        if self.stopping {
            return Vec::new();
        }
        self.make_known(id);
        self.handle(id, Input::Start, now)
    }

    /// Takes over a shard whose masters outlived an earlier supervisor. Generations that were leaving go on leaving.
    #[must_use]
    pub fn adopt(&mut self, id: &ShardId, adopted: &Adopted, now: Moment) -> Vec<FleetAction> {
        let mut shard = Shard::new(id.clone(), self.timing);
        let actions = shard.adopt(adopted, now);
        self.shards.insert(id.clone(), shard);
        actions.into_iter().map(FleetAction::Shard).collect()
    }

    /// Forgets shards that are retired and gone.
    pub fn forget_gone(&mut self) {
        let forgotten = &mut self.forgotten;
        self.shards.retain(|id, shard| {
            let stays = shard.wanted() != Wanted::Retired || !shard.is_gone();
            if !stays {
                forgotten.insert(id.clone(), shard.last_generation());
            }
            stays
        });
    }

    fn make_known(&mut self, id: &ShardId) -> &mut Shard {
        let (timing, last) = (self.timing, self.forgotten.get(id).copied().unwrap_or(Generation(0)));
        self.shards.entry(id.clone()).or_insert_with(|| Shard::after(id.clone(), timing, last))
    }

    /// Tells whether nothing is alive or on its way.
    pub fn is_gone(&self) -> bool {
        self.shards.values().all(Shard::is_gone)
    }

    /// Tells whether no job is under way and no master on its way in: nothing is half done.
    pub fn is_between_steps(&self) -> bool {
        self.job.is_none() && self.shards.values().all(|shard| shard.birth().is_none())
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
    /// Another one is under way, or everything is leaving.
    pub fn begin(&mut self, order: JobOrder, now: Moment) -> Result<(u64, Vec<FleetAction>), Busy> {
        if self.stopping {
            return Err(Busy(self.stop_view()));
        }
        if let Some(job) = &self.job {
            return Err(Busy(self.view(job)));
        }
        self.jobs += 1;
        let waiting: VecDeque<ShardId> = order.shards.iter().cloned().collect();
        let stage = JobStage::Nginx { first: NginxStep::First };
        let first = order.nginx == NginxStep::First;
        let (done, skipped) = (Vec::new(), Vec::new());
        self.job = Some(Job { number: self.jobs, order, started: now, waiting, done, skipped, stage, failure: None });
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

    /// Hears that the NGINX step has failed: the job goes on, as PHP never waits for NGINX, and ends as a failed one.
    #[must_use]
    pub fn nginx_failed(&mut self, why: &str, now: Moment) -> Vec<FleetAction> {
        if let Some(Job { stage: JobStage::Nginx { .. }, failure: failure @ None, .. }) = &mut self.job {
            *failure = Some(JobFailure { shard: None, generation: None, why: why.to_owned() });
        }
        self.nginx_done(now)
    }

    /// Hears that the NGINX step has ended.
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
        self.stopping = true;
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

    /// Passes a shard's action on; a note of the shard whose turn it is becomes progress.
    pub(super) fn push(&mut self, action: Action, now: Moment, actions: &mut Vec<FleetAction>) {
        if let Action::Note { master, note } = &action
            && let Some(step) = step_word(note)
            && self.job.as_ref().is_some_and(|job| job.stage.is_turn_of(&master.shard))
        {
            self.progress(Who(Some(master.shard.clone()), Some(master.generation)), step, now, actions);
        }
        actions.push(FleetAction::Shard(action));
    }
}
