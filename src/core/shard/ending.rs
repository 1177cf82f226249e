//! How a master goes: replaced, parked, retired, dismissed or dead.

use std::time::Duration;

use super::leaving::{Leaving, LeavingStage, UNREADY_GRACE};
use super::machine::{Birth, Shard, Slot, Stage, Wanted};
use super::words::{Action, Note, Quieting, Signal, Target};
use crate::model::ids::{Generation, MasterId};
use crate::model::time::Moment;

impl Shard {
    pub(super) fn release_orphans(&mut self, why: Quieting, now: Moment) -> Vec<Action> {
        let id = self.id.clone();
        self.leaving
            .iter_mut()
            .filter(|leaving| leaving.stage == LeavingStage::Orphaned)
            .flat_map(|leaving| leaving.quiet_first(&MasterId::new(&id, leaving.generation), why, now))
            .collect()
    }

    /// A living master that served begins to leave.
    pub(super) fn depart(&mut self, generation: Generation, pid: u32, why: Quieting, now: Moment) -> Vec<Action> {
        let master = self.master(generation);
        let mut leaving = Leaving {
            generation,
            pid: Some(pid),
            master_alive: true,
            stage: LeavingStage::Orphaned,
            since: now,
            patience: self.timing.drain_timeout,
        };
        let actions = leaving.quiet_first(&master, why, now);
        self.leaving.push(leaving);
        actions
    }

    /// Gives how long a master that never served may finish what it took.
    pub(super) fn patience_with(&self, stage: Stage) -> Duration {
        match stage {
            // On a shared listener it accepts as soon as it runs: what it took must be let finish.
            Stage::Proving | Stage::Gathered | Stage::Switching => self.timing.drain_timeout,
            Stage::Launching | Stage::AwaitingReady => UNREADY_GRACE.min(self.timing.drain_timeout),
        }
    }

    /// A master that never served is told to go.
    pub(super) fn dismiss(&mut self, birth: &Birth, now: Moment) -> Vec<Action> {
        let master = self.master(birth.generation);
        let patience = self.patience_with(birth.stage);
        let until = now.after(patience);
        let mut leaving = Leaving {
            generation: birth.generation,
            pid: birth.pid,
            master_alive: birth.pid.is_some(),
            stage: LeavingStage::Quit { until },
            since: now,
            patience,
        };
        let actions = if birth.pid.is_some() { leaving.quit(&master, now) } else { Vec::new() };
        self.leaving.push(leaving);
        actions
    }

    pub(super) fn died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        if self.birth_mut(generation).is_some() {
            return self.birth_died(generation, why, now);
        }
        if self.serving().is_some_and(|(serving, _)| serving == generation) {
            return self.serving_died(generation, why, now);
        }
        let master = self.master(generation);
        let mut living = self.leaving.iter_mut().filter(|leaving| leaving.master_alive);
        let Some(leaving) = living.find(|leaving| leaving.generation == generation) else { return Vec::new() };
        leaving.master_alive = false;
        match leaving.stage {
            // What is left of its group does not know that it should leave; its time to finish runs on.
            LeavingStage::Quit { .. } => vec![Action::Signal { master, signal: Signal::Quit, to: Target::Group }],
            LeavingStage::Term { .. } | LeavingStage::Kill { .. } => leaving.kill(&master, now),
            LeavingStage::Orphaned | LeavingStage::Quieting { .. } => Vec::new(),
        }
    }

    pub(super) fn serving_died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        self.forget_if_stable(now);
        let pid = self.serving().map(|(_, pid)| pid);
        let mut actions = vec![self.note(generation, Note::Crashed(why.clone()))];
        self.last_failure = Some(why);
        self.leaving.push(Leaving {
            generation,
            pid,
            master_alive: false,
            stage: LeavingStage::Orphaned,
            since: now,
            patience: self.timing.drain_timeout,
        });
        if let Slot::HandingOver { next, .. } = std::mem::replace(&mut self.slot, Slot::Empty) {
            // The successor is on its way already; it simply has nobody to wait for.
            self.slot = Slot::Starting(next);
            return actions;
        }
        if self.failures == 0 {
            self.failures = 1;
            actions.extend(self.begin_start(now));
        } else {
            actions.extend(self.pause_or_halt(now));
        }
        actions
    }

    pub(super) fn leave_for(&mut self, wanted: Wanted, now: Moment) -> Vec<Action> {
        if self.wanted == Wanted::Retired {
            return Vec::new();
        }
        self.wanted = wanted;
        // The next start is somebody's wish, with the whole budget.
        self.halted = false;
        self.failures = 0;
        let why = if wanted == Wanted::Parked { Quieting::Parked } else { Quieting::Retired };
        let mut actions = Vec::new();
        if let Some(birth) = self.abandon_birth() {
            actions.extend(self.dismiss(&birth, now));
        }
        if wanted == Wanted::Parked {
            self.lent = true;
            actions.push(Action::Lend { shard: self.id.clone() });
            actions.push(self.note(self.last, Note::Parked));
        }
        if let Slot::Serving { generation, pid, .. } = std::mem::replace(&mut self.slot, Slot::Empty) {
            actions.extend(self.depart(generation, pid, why, now));
        }
        actions.extend(self.release_orphans(why, now));
        actions
    }

    pub(super) fn quiet(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let master = self.master(generation);
        let Some(leaving) = self.leaving.iter_mut().find(|leaving| leaving.generation == generation) else { return Vec::new() };
        match leaving.stage {
            LeavingStage::Quieting { .. } => leaving.quit(&master, now),
            LeavingStage::Orphaned | LeavingStage::Quit { .. } | LeavingStage::Term { .. } | LeavingStage::Kill { .. } => Vec::new(),
        }
    }

    pub(super) fn detained(&mut self, generation: Generation) -> Vec<Action> {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.generation == generation) {
            if let LeavingStage::Quieting { detained, .. } = &mut leaving.stage {
                *detained = true;
            }
        }
        Vec::new()
    }

    /// The end of a group tells of its master's end, too, whichever of the two reports comes first.
    pub(super) fn gone(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let mut actions = self.died(generation, "its processes ended".to_owned(), now);
        // Nobody is left whom a signal could reach.
        actions.retain(|action| !matches!(action, Action::Signal { master, .. } if master.generation == generation));
        if let Some(left) = self.forget_leaving(generation) {
            actions.extend([self.note(generation, Note::Gone), Action::Discard { master: self.master(generation) }]);
            actions.extend(self.after_leaving(&left));
        }
        actions
    }

    pub(super) fn forget_leaving(&mut self, generation: Generation) -> Option<Leaving> {
        let at = self.leaving.iter().position(|leaving| leaving.generation == generation)?;
        Some(self.leaving.remove(at))
    }
}
