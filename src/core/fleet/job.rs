//! A job from its order to its end, and how it looks from outside.

use std::collections::VecDeque;

use super::Fleet;
use super::together::{Gate, Member};
use super::words::{FleetAction, JobFailure, JobOrder, NginxStep};
use crate::core::shard::{Input, Note, Shard, Stage};
use crate::model::ids::{Generation, ShardId};
use crate::model::snapshot::JobView;
use crate::model::time::Moment;
use crate::model::wire::ShardRuns;

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) order: JobOrder,
    pub(super) started: Moment,
    pub(super) waiting: VecDeque<ShardId>,
    pub(super) done: Vec<ShardId>,
    /// Those of `done` that were left alone.
    pub(super) skipped: Vec<ShardId>,
    pub(super) stage: JobStage,
    pub(super) failure: Option<JobFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobStage {
    Nginx { first: NginxStep },
    Together { members: Vec<Member>, gate: Gate },
    Turn { shard: ShardId, from: Option<Generation>, step: TurnStep },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnStep {
    /// A start that was under way when the turn came is let finish; then the shard is rolled.
    Settling { rolled: Rolled },
    /// The shard is on its way down.
    Emptying,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rolled {
    Yes,
    NotYet,
}

impl JobStage {
    /// Tells whether it is this shard's turn.
    pub(super) fn is_turn_of(&self, id: &ShardId) -> bool {
        match self {
            Self::Turn { shard, .. } => shard == id,
            Self::Together { members, .. } => members.iter().any(|member| member.shard == *id),
            Self::Nginx { .. } => false,
        }
    }
}

/// Whose step it is.
pub(super) struct Who(pub(super) Option<ShardId>, pub(super) Option<Generation>);

impl Fleet {
    pub(super) fn view(&self, job: &Job) -> JobView {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        JobView {
            job: job.number,
            verb: job.order.kind.word().to_owned(),
            done: count(job.done.len()),
            total: count(job.order.shards.len()),
            step: self.step(job),
        }
    }

    /// Gives the view of what is in the way of a job when everything is leaving.
    pub(super) fn stop_view(&self) -> JobView {
        let count = |gone: bool| u32::try_from(self.shards.values().filter(|shard| shard.is_gone() == gone).count()).unwrap_or(u32::MAX);
        let (done, left) = (count(true), count(false));
        JobView { job: self.jobs, verb: "stop".to_owned(), done, total: done.saturating_add(left), step: "masters are leaving".to_owned() }
    }

    pub(super) fn step(&self, job: &Job) -> String {
        let shard = match &job.stage {
            JobStage::Turn { shard, .. } => shard,
            JobStage::Together { members, .. } => {
                let proven = |id: &ShardId| self.shards.get(id).and_then(Shard::birth).is_none_or(|birth| birth.stage == Stage::Gathered);
                let waiting = members.iter().find(|member| !proven(&member.shard)).or(members.first());
                let Some(Member { shard, .. }) = waiting else { return "nothing".to_owned() };
                shard
            }
            JobStage::Nginx { .. } => return "nginx".to_owned(),
        };
        let Some(machine) = self.shards.get(shard) else { return shard.to_string() };
        if let Some(birth) = machine.birth() {
            let what = match birth.stage {
                Stage::Launching => "starting",
                Stage::AwaitingReady => "waiting for readiness",
                Stage::Proving => "verifying",
                Stage::Gathered => "waiting for the others",
                Stage::Switching => "switching",
            };
            return format!("{shard}#{}: {what}", birth.generation);
        }
        match machine.serving() {
            Some((generation, _)) => format!("{shard}#{generation}: settling"),
            None => format!("{shard}: down"),
        }
    }

    pub(super) fn progress(&self, who: Who, step: &'static str, now: Moment, actions: &mut Vec<FleetAction>) {
        if let Some(job) = &self.job {
            let Who(shard, generation) = who;
            actions.push(FleetAction::Progress { job: self.view(job), shard, generation, step, at: now - job.started });
        }
    }

    pub(super) fn after_turns(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
        let Some(job) = &mut self.job else { return };
        if job.order.nginx == NginxStep::Last {
            job.stage = JobStage::Nginx { first: NginxStep::Last };
            self.progress(Who(None, None), "nginx", now, actions);
            actions.push(FleetAction::Nginx);
        } else {
            self.finish(now, actions);
        }
    }

    pub(super) fn finish(&mut self, now: Moment, actions: &mut Vec<FleetAction>) {
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

    pub(super) fn runs(&self, id: &ShardId, job: &Job) -> ShardRuns {
        let generation = self.shards.get(id).and_then(|shard| shard.serving().map(|(generation, _)| generation));
        let failed = job.failure.as_ref().is_some_and(|failure| failure.shard.as_ref() == Some(id));
        let outcome = if failed {
            "failed"
        } else if job.done.contains(id) && !job.skipped.contains(id) {
            "changed"
        } else {
            "untouched"
        };
        ShardRuns { shard: id.clone(), generation, outcome: outcome.to_owned() }
    }
}

pub(super) fn step_word(note: &Note) -> Option<&'static str> {
    match note {
        Note::Starting => Some("binding"),
        Note::Launched => Some("starting"),
        Note::Proving => Some("verifying"),
        Note::Gathered => Some("waiting"),
        Note::CalledOff(_) => Some("called off"),
        Note::Switching => Some("switching"),
        Note::Serving => Some("settling"),
        Note::Leaving => Some("draining"),
        Note::Failed(_) | Note::Crashed(_) | Note::Halted(_) => Some("failed"),
        Note::Rescuing | Note::Quitting | Note::Hardened(_) | Note::Gone | Note::Pausing | Note::Parked => None,
    }
}
