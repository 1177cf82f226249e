//! One shard's turn: how it begins, how it is seen to have ended.

use std::time::Duration;

use super::Fleet;
use super::job::{JobStage, Rolled, TurnStep, Who};
use super::words::{FleetAction, JobFailure, JobKind};
use crate::core::shard::{Input, LeavingStage, Shard, Slot, Wanted};
use crate::model::ids::{Generation, ShardId};
use crate::model::time::Moment;

/// How long a turn waits for the old master to fall quiet before the job goes on without that. With keep-alive NGINX has
/// closed its last connection 3 s after the switch (P25); the rest is for queues that take long to empty.
pub const QUIET_PATIENCE: Duration = Duration::from_secs(10);

impl Fleet {
    pub(super) fn next_turn(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        loop {
            let Some(job) = &mut self.job else { return };
            let Some(id) = job.waiting.pop_front() else {
                self.after_turns(now, actions);
                return;
            };
            let kind = job.order.kind.clone();
            if let Some(ids) = self.company(&id) {
                self.begin_together(&ids, now, actions);
                return;
            }
            if self.begin_turn(&id, &kind, now, actions) == Turn::Begun {
                return;
            }
            if let Some(job) = &mut self.job {
                job.done.push(id.clone());
                job.skipped.push(id.clone());
            }
            self.progress(Who(Some(id), None), "skipped", now, actions);
        }
    }

    fn begin_turn(&mut self, id: &ShardId, kind: &JobKind, now: Moment, actions: &mut Vec<FleetAction>) -> Turn {
        let shard = self.make_known(id);
        // An unpark has nothing to replace: whatever serves is what it wants.
        let from = shard.serving().map(|(generation, _)| generation).filter(|_| *kind != JobKind::Unpark);
        let (input, step) = match (kind, shard.wanted()) {
            (JobKind::Restart | JobKind::Heal, Wanted::Parked | Wanted::Retired) => return Turn::Skipped,
            // A plan that has a shard again brings it back; it does not undo what the operator parked.
            (JobKind::Apply, Wanted::Parked) => return Turn::Skipped,
            (JobKind::Park | JobKind::Drain, _) => (Input::Park, TurnStep::Emptying),
            (JobKind::Unpark, _) => (Input::Start, TurnStep::Settling { rolled: Rolled::Yes }),
            (JobKind::Restart | JobKind::Apply | JobKind::Heal, _) => match shard.slot() {
                Slot::Serving { .. } if *kind == JobKind::Heal => (Input::Heal, TurnStep::Settling { rolled: Rolled::Yes }),
                Slot::Serving { .. } => (Input::Roll, TurnStep::Settling { rolled: Rolled::Yes }),
                Slot::HandingOver { .. } | Slot::Starting(_) => (Input::Time, TurnStep::Settling { rolled: Rolled::NotYet }),
                Slot::Empty | Slot::Pausing { .. } => (Input::Start, TurnStep::Settling { rolled: Rolled::Yes }),
            },
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
    pub(super) fn advance(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        loop {
            let (id, from, step) = match self.job.as_ref().map(|job| &job.stage) {
                Some(JobStage::Turn { shard, from, step }) => (shard.clone(), *from, *step),
                Some(JobStage::Together { .. }) => {
                    if self.advance_together(now, actions) {
                        continue;
                    }
                    return;
                }
                Some(JobStage::Nginx { .. }) | None => return,
            };
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
                Outcome::Failed(failure) => self.fail_job(failure, now, actions),
            }
        }
    }

    /// Ends a job early: no further shard is visited.
    pub(super) fn fail_job(&mut self, failure: JobFailure, now: Moment, actions: &mut Vec<FleetAction>) {
        if let Some(job) = &mut self.job {
            job.failure = Some(failure);
            job.waiting.clear();
        }
        // NGINX may have to learn of the shards that did change.
        self.after_turns(now, actions);
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
            TurnStep::Emptying if shard.wanted() == Wanted::Up => {
                let why = "it was started again".to_owned();
                Outcome::Failed(JobFailure { shard: Some(id.clone()), generation: Some(shard.last_generation()), why })
            }
            TurnStep::Emptying => {
                if matches!(shard.slot(), Slot::Empty) && !is_quieting(shard) {
                    Outcome::Done
                } else {
                    Outcome::UnderWay
                }
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

    pub(super) fn settled(&self, shard: &Shard, since: Moment, now: Moment) -> Outcome {
        let settled = now >= since.after(self.settle);
        let patient = now < since.after(QUIET_PATIENCE);
        if settled && !(is_quieting(shard) && patient) { Outcome::Done } else { Outcome::UnderWay }
    }

    pub(super) fn turn_deadline(&self) -> Option<Moment> {
        match &self.job.as_ref()?.stage {
            JobStage::Turn { shard, step: TurnStep::Settling { .. }, .. } => self.settles_at(self.shards.get(shard)?),
            JobStage::Together { .. } => self.together_deadline(),
            JobStage::Turn { .. } | JobStage::Nginx { .. } => None,
        }
    }

    /// Gives when a shard that serves has settled, as things stand.
    pub(super) fn settles_at(&self, shard: &Shard) -> Option<Moment> {
        let Slot::Serving { since, .. } = shard.slot() else { return None };
        Some(since.after(if is_quieting(shard) { QUIET_PATIENCE.max(self.settle) } else { self.settle }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Begun,
    Skipped,
}

pub(super) enum Outcome {
    UnderWay,
    RollNow,
    Done,
    Failed(JobFailure),
}

/// Tells whether a generation of the shard serves what waits at its old sockets, and only that keeps it from being told to finish.
fn is_quieting(shard: &Shard) -> bool {
    shard.leaving().iter().any(|leaving| matches!(leaving.stage(), LeavingStage::Quieting { detained: false, .. }))
}

pub(super) fn failure_of(shard: &Shard) -> JobFailure {
    let why = shard.last_failure().unwrap_or("it went down").to_owned();
    JobFailure { shard: Some(shard.id().clone()), generation: Some(shard.last_generation()), why }
}
