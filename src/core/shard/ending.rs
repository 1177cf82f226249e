//! How a master goes: replaced, parked, retired, dismissed or dead.

use std::time::Duration;

use super::leaving::{Leaving, LeavingStage, UNREADY_GRACE};
use super::machine::{Birth, Shard, Slot, Stage, Wanted};
use super::words::{Action, Note, Quieting};
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

    /// A master that never served is told to go.
    pub(super) fn dismiss(&mut self, birth: &Birth, now: Moment) -> Vec<Action> {
        let master = self.master(birth.generation);
        let patience = match birth.stage {
            // On a shared listener it accepts as soon as it runs: what it took must be let finish.
            Stage::Proving | Stage::Switching => self.timing.drain_timeout,
            Stage::Launching | Stage::AwaitingReady => UNREADY_GRACE.min(self.timing.drain_timeout),
        };
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
        let Some(leaving) = self.leaving.iter_mut().find(|leaving| leaving.generation == generation) else { return Vec::new() };
        leaving.master_alive = false;
        match leaving.stage {
            // What is left of its group does not know that it should leave.
            LeavingStage::Quit { .. } => leaving.quit(&master, now),
            LeavingStage::Term { .. } | LeavingStage::Kill { .. } => leaving.kill(&master, now),
            LeavingStage::Orphaned | LeavingStage::Quieting { .. } => Vec::new(),
        }
    }

    pub(super) fn serving_died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        let served = self.serving_since().map_or(Duration::ZERO, |since| now - since);
        let mut actions = vec![self.note(generation, Note::Crashed(why.clone()))];
        self.last_failure = Some(why);
        self.leaving.push(Leaving {
            generation,
            pid: None,
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
        if served >= self.timing.stable_after {
            self.failures = 0;
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
        self.halted = false;
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

    pub(super) fn gone(&mut self, generation: Generation) -> Vec<Action> {
        let before = self.leaving.len();
        self.leaving.retain(|leaving| leaving.generation != generation || leaving.master_alive);
        if self.leaving.len() == before {
            return Vec::new();
        }
        vec![self.note(generation, Note::Gone), Action::Discard { master: self.master(generation) }]
    }
}
