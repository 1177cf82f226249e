//! Shards whose turns are one turn.
//!
//! Where several shards accept on the same listener, a new master that was given it would accept before it is proven. Such
//! shards may be handed over together instead: all their new masters come in on one new listener, and its path is taken when
//! the last of them has been proven (design, routing). The first failure calls the others off, and every old master stays.

use std::collections::BTreeSet;

use super::Fleet;
use super::job::{Job, JobStage, Who};
use super::turn::{Outcome, failure_of};
use super::words::{FleetAction, JobFailure, JobKind};
use crate::core::shard::{Input, Shard, Slot, Stage, Wanted};
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::time::Moment;

/// One shard of a turn that several have together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) shard: ShardId,
    /// The generation that served when the turn began.
    from: Option<Generation>,
}

/// How far they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Not all of them have been proven.
    Closed,
    /// The paths were taken.
    Open,
}

impl Fleet {
    /// Gives the shards whose turn begins with that of `first`, if it is one of several.
    ///
    /// All of the set that serve must be in it: one that stayed with the old listener would be reached by nobody.
    pub(super) fn company(&self, first: &ShardId) -> Option<Vec<ShardId>> {
        let job = self.job.as_ref().filter(|job| matches!(job.order.kind, JobKind::Restart | JobKind::Apply))?;
        let set: &BTreeSet<ShardId> = job.order.together.iter().find(|set| set.contains(first))?;
        let mut members = Vec::new();
        for id in set {
            let Some(shard) = self.shards.get(id) else { continue };
            match shard.slot() {
                Slot::Serving { .. } if shard.wanted() != Wanted::Up => return None,
                Slot::Serving { .. } if id == first || job.waiting.contains(id) => members.push(id.clone()),
                Slot::Serving { .. } | Slot::Starting(_) | Slot::HandingOver { .. } => return None,
                Slot::Empty | Slot::Pausing { .. } => {}
            }
        }
        members.contains(first).then_some(members)
    }

    /// Begins the turn of several shards.
    pub(super) fn begin_together(&mut self, ids: &[ShardId], now: Moment, actions: &mut Vec<FleetAction>) {
        let serving = |id: &ShardId| self.shards.get(id).and_then(Shard::serving).map(|(generation, _)| generation);
        let members = ids.iter().map(|id| Member { shard: id.clone(), from: serving(id) }).collect();
        if let Some(job) = &mut self.job {
            job.waiting.retain(|id| !ids.contains(id));
            job.stage = JobStage::Together { members, gate: Gate::Closed };
        }
        for id in ids {
            self.tell_member(id, Input::RollTogether, now, actions);
        }
    }

    fn tell_member(&mut self, id: &ShardId, input: Input, now: Moment, actions: &mut Vec<FleetAction>) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        for action in shard.handle(input, now) {
            self.push(action, now, actions);
        }
    }

    /// Looks whether the turn of several goes on or has ended; gives whether it has.
    pub(super) fn advance_together(&mut self, now: Moment, actions: &mut Vec<FleetAction>) -> bool {
        let Some(Job { stage: JobStage::Together { members, gate }, .. }) = &self.job else { return false };
        let (members, gate) = (members.clone(), *gate);
        match self.outcome_together(&members, gate, now) {
            Outcome::UnderWay => false,
            Outcome::RollNow => {
                self.open_gate(&members, now, actions);
                false
            }
            Outcome::Done => {
                for Member { shard: id, .. } in members {
                    if let Some(job) = &mut self.job {
                        job.done.push(id.clone());
                    }
                    let generation = self.shards.get(&id).and_then(|shard| shard.serving().map(|(generation, _)| generation));
                    self.progress(Who(Some(id), generation), "done", now, actions);
                }
                self.next_turn(now, actions);
                true
            }
            Outcome::Failed(failure) => {
                self.call_off(&members, &failure, now, actions);
                self.fail_job(failure, now, actions);
                true
            }
        }
    }

    fn outcome_together(&self, members: &[Member], gate: Gate, now: Moment) -> Outcome {
        let mut gathered = 0;
        let mut settled = 0;
        for Member { shard: id, from } in members {
            let Some(shard) = self.shards.get(id) else { return Outcome::Done };
            match shard.slot() {
                Slot::Serving { generation, .. } if Some(*generation) == *from => return Outcome::Failed(failure_of(shard)),
                Slot::Serving { since, .. } => settled += usize::from(matches!(self.settled(shard, *since, now), Outcome::Done)),
                Slot::Pausing { .. } | Slot::Empty => return Outcome::Failed(failure_of(shard)),
                Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } if gate == Gate::Closed => {
                    // Another start than that of the turn: the old master died, and so did its successor.
                    if !birth.comes_together() {
                        return Outcome::Failed(failure_of(shard));
                    }
                    gathered += usize::from(birth.stage == Stage::Gathered);
                }
                Slot::Starting(_) | Slot::HandingOver { .. } => {}
            }
        }
        match gate {
            Gate::Closed if gathered == members.len() => Outcome::RollNow,
            Gate::Open if settled == members.len() => Outcome::Done,
            Gate::Closed | Gate::Open => Outcome::UnderWay,
        }
    }

    /// All are proven: the paths change hands in one breath.
    fn open_gate(&mut self, members: &[Member], now: Moment, actions: &mut Vec<FleetAction>) {
        if let Some(Job { stage: JobStage::Together { gate, .. }, .. }) = &mut self.job {
            *gate = Gate::Open;
        }
        let mut masters = Vec::new();
        for Member { shard: id, .. } in members {
            self.tell_member(id, Input::GoOn, now, actions);
            let birth = self.shards.get(id).and_then(Shard::birth);
            masters.extend(birth.map(|birth| MasterId::new(id, birth.generation)));
        }
        actions.push(FleetAction::SwitchTogether { masters });
    }

    fn call_off(&mut self, members: &[Member], failure: &JobFailure, now: Moment, actions: &mut Vec<FleetAction>) {
        let failed = failure.shard.as_ref();
        let why = failed.map_or_else(|| failure.why.clone(), |id| format!("{id} did not come in with it"));
        for Member { shard: id, .. } in members.iter().filter(|member| failed != Some(&member.shard)) {
            self.tell_member(id, Input::CallOff { why: why.clone() }, now, actions);
        }
    }

    /// Gives when the last of them has settled, if all of them serve.
    pub(super) fn together_deadline(&self) -> Option<Moment> {
        let JobStage::Together { members, gate: Gate::Open } = &self.job.as_ref()?.stage else { return None };
        let times = members.iter().map(|member| self.settles_at(self.shards.get(&member.shard)?));
        times.collect::<Option<Vec<Moment>>>()?.into_iter().max()
    }
}
