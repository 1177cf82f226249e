//! How a master comes in: launched, ready, proven, switched, serving; and how that fails.

use std::time::Duration;

use super::leaving::{Leaving, LeavingStage};
use super::machine::{Birth, BlueprintTrust, EFFECT_TIMEOUT, MadeFrom, Shard, Slot, Stage, Wanted};
use super::words::{Action, Blueprint, Note, Quieting, Sockets};
use crate::model::ids::Generation;
use crate::model::time::Moment;

/// The longest pause between two failed starts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Shard {
    pub(super) fn start(&mut self, now: Moment) -> Vec<Action> {
        self.wanted = Wanted::Up;
        match self.slot {
            Slot::Empty | Slot::Pausing { .. } => {
                if self.halted {
                    self.failures = 0;
                    self.halted = false;
                }
                // Whoever asks means the present configuration, and may have mended what it failed for.
                if self.blueprint == BlueprintTrust::Suspect {
                    self.blueprint = BlueprintTrust::Untried;
                }
                self.begin_start(now)
            }
            Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => Vec::new(),
        }
    }

    pub(super) fn begin_start(&mut self, now: Moment) -> Vec<Action> {
        let (birth, actions) = self.conceive(Sockets::Held, self.trusted_blueprint(), now);
        self.slot = Slot::Starting(birth);
        actions
    }

    /// Gives the configuration for a master that nobody asked a change of.
    pub(super) fn trusted_blueprint(&self) -> Blueprint {
        match self.blueprint {
            BlueprintTrust::Suspect => Blueprint::LastGood,
            BlueprintTrust::Trusted | BlueprintTrust::Untried => Blueprint::Current,
        }
    }

    /// Begins to hand the shard over to a new master.
    pub(super) fn replace(&mut self, sockets: Sockets, blueprint: Blueprint, now: Moment) -> Vec<Action> {
        let Slot::Serving { generation, pid, since } = self.slot else { return Vec::new() };
        if self.wanted != Wanted::Up {
            return Vec::new();
        }
        let (next, actions) = self.conceive(sockets, blueprint, now);
        self.slot = Slot::HandingOver { generation, pid, since, next };
        actions
    }

    pub(super) fn conceive(&mut self, sockets: Sockets, blueprint: Blueprint, now: Moment) -> (Birth, Vec<Action>) {
        self.last = self.last.next();
        let generation = self.last;
        let until = now.after(EFFECT_TIMEOUT);
        let made_from = if blueprint == Blueprint::Current { MadeFrom::Present } else { MadeFrom::Older };
        let birth = Birth { generation, stage: Stage::Launching, pid: None, until, sockets, made_from };
        let launch = Action::Launch { master: self.master(generation), sockets, blueprint };
        (birth, vec![self.note(generation, Note::Starting), launch])
    }

    pub(super) fn launched(&mut self, generation: Generation, pid: u32, now: Moment) -> Vec<Action> {
        let until = now.after(self.timing.ready_timeout);
        if let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::Launching) {
            birth.pid = Some(pid);
            birth.stage = Stage::AwaitingReady;
            birth.until = until;
            return vec![self.note(generation, Note::Launched)];
        }
        if let Some(actions) = self.rescue_launched(generation, pid, now) {
            return actions;
        }
        // Launched after it was given up: it is on the list of those that leave, and now there is somebody to tell.
        let master = self.master(generation);
        self.leaving
            .iter_mut()
            .find(|leaving| leaving.generation == generation && leaving.is_unborn())
            .map(|leaving| {
                leaving.pid = Some(pid);
                leaving.master_alive = true;
                leaving.kill(&master, now)
            })
            .unwrap_or_default()
    }

    pub(super) fn ready(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let until = now.after(self.timing.prove_timeout);
        let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::AwaitingReady) else { return Vec::new() };
        birth.stage = Stage::Proving;
        birth.until = until;
        vec![self.note(generation, Note::Proving), Action::Prove { master: self.master(generation) }]
    }

    pub(super) fn proven(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        // However late another of them began, by then it is proven or has failed.
        let patience = self.timing.ready_timeout + self.timing.prove_timeout + EFFECT_TIMEOUT;
        let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::Proving) else { return Vec::new() };
        match birth.sockets {
            Sockets::Held => self.begin_serving(now),
            Sockets::New => {
                birth.stage = Stage::Switching;
                birth.until = now.after(EFFECT_TIMEOUT);
                vec![self.note(generation, Note::Switching), Action::Switch { master: self.master(generation) }]
            }
            Sockets::Together => {
                birth.stage = Stage::Gathered;
                birth.until = now.after(patience);
                vec![self.note(generation, Note::Gathered)]
            }
        }
    }

    /// The paths of all that come in together are about to be taken.
    pub(super) fn go_on(&mut self, now: Moment) -> Vec<Action> {
        let (Slot::Starting(birth) | Slot::HandingOver { next: birth, .. }) = &mut self.slot else { return Vec::new() };
        if birth.stage != Stage::Gathered {
            return Vec::new();
        }
        birth.stage = Stage::Switching;
        birth.until = now.after(EFFECT_TIMEOUT);
        let generation = birth.generation;
        vec![self.note(generation, Note::Switching)]
    }

    /// The birth is given up through no fault of its own.
    pub(super) fn call_off(&mut self, why: String, now: Moment) -> Vec<Action> {
        if self.birth().is_none_or(|birth| birth.sockets != Sockets::Together) {
            return Vec::new();
        }
        let Some(birth) = self.abandon_birth() else { return Vec::new() };
        let mut actions = vec![self.note(birth.generation, Note::CalledOff(why))];
        actions.extend(self.dismiss(&birth, now));
        if matches!(self.slot, Slot::Empty) {
            // The old master died meanwhile, and its successor was on its way already.
            actions.extend(self.begin_start(now));
        }
        self.forget_in_time(now);
        actions
    }

    pub(super) fn switched(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        if self.birth_mut(generation).is_some_and(|birth| birth.stage == Stage::Switching) {
            return self.begin_serving(now);
        }
        Vec::new()
    }

    /// The birth becomes the serving master; whoever served or was orphaned leaves.
    pub(super) fn begin_serving(&mut self, now: Moment) -> Vec<Action> {
        self.forget_if_stable(now);
        let slot = std::mem::replace(&mut self.slot, Slot::Empty);
        let (old, birth) = match slot {
            Slot::Starting(birth) => (None, birth),
            Slot::HandingOver { generation, pid, next, .. } => (Some((generation, pid)), next),
            other @ (Slot::Empty | Slot::Pausing { .. } | Slot::Serving { .. }) => {
                self.slot = other;
                return Vec::new();
            }
        };
        self.slot = Slot::Serving { generation: birth.generation, pid: birth.pid.unwrap_or_default(), since: now };
        self.ever_served = true;
        match birth.made_from {
            MadeFrom::Present => {
                self.blueprint = BlueprintTrust::Trusted;
                if old.is_some() {
                    self.last_failure = None;
                }
            }
            MadeFrom::Older if self.blueprint == BlueprintTrust::Trusted => self.blueprint = BlueprintTrust::Untried,
            MadeFrom::Older => {}
        }
        let mut actions = Vec::new();
        if std::mem::take(&mut self.lent) {
            actions.push(Action::TakeBack { shard: self.id.clone() });
        }
        actions.push(self.note(birth.generation, Note::Serving));
        if let Some((generation, pid)) = old {
            actions.extend(self.depart(generation, pid, Quieting::Replaced, now));
        }
        actions.extend(self.release_orphans(Quieting::Replaced, now));
        actions
    }

    pub(super) fn launch_failed(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        let discard = Action::Discard { master: self.master(generation) };
        if self.birth_mut(generation).is_some() {
            let mut actions = vec![self.note(generation, Note::Failed(why.clone())), discard];
            if let Some(birth) = self.abandon_birth() {
                actions.extend(self.after_failed_birth(&birth, why, now));
            }
            return actions;
        }
        // It was given up while it was being launched; said twice, it is forgotten already.
        let Some(left) = self.forget_leaving(generation) else { return Vec::new() };
        let mut actions = vec![discard];
        actions.extend(self.after_leaving(&left));
        actions
    }

    /// Takes the birth out of the slot; the serving master, if any, is alone again.
    pub(super) fn abandon_birth(&mut self) -> Option<Birth> {
        match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Starting(birth) => Some(birth),
            Slot::HandingOver { generation, pid, since, next } => {
                self.slot = Slot::Serving { generation, pid, since };
                Some(next)
            }
            other @ (Slot::Empty | Slot::Pausing { .. } | Slot::Serving { .. }) => {
                self.slot = other;
                None
            }
        }
    }

    pub(super) fn birth_failed(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        if self.birth_mut(generation).is_none() {
            return Vec::new();
        }
        let mut actions = vec![self.note(generation, Note::Failed(why.clone()))];
        if let Some(birth) = self.abandon_birth() {
            actions.extend(self.dismiss(&birth, now));
            actions.extend(self.after_failed_birth(&birth, why, now));
        }
        actions
    }

    pub(super) fn birth_died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        let master = self.master(generation);
        let mut actions = vec![self.note(generation, Note::Failed(why.clone()))];
        if let Some(birth) = self.abandon_birth() {
            let mut leaving = Leaving {
                generation,
                pid: birth.pid,
                master_alive: false,
                stage: LeavingStage::Orphaned,
                since: now,
                patience: self.patience_with(birth.stage),
            };
            actions.extend(leaving.quit(&master, now));
            self.leaving.push(leaving);
            actions.extend(self.after_failed_birth(&birth, why, now));
        }
        actions
    }

    pub(super) fn after_failed_birth(&mut self, birth: &Birth, why: String, now: Moment) -> Vec<Action> {
        self.last_failure = Some(why);
        if self.blueprint == BlueprintTrust::Untried && birth.made_from == MadeFrom::Present {
            self.blueprint = BlueprintTrust::Suspect;
        }
        match self.slot {
            Slot::Empty => self.pause_or_halt(now),
            Slot::Pausing { .. } | Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => Vec::new(),
        }
    }

    pub(super) fn pause_or_halt(&mut self, now: Moment) -> Vec<Action> {
        self.failures = self.failures.saturating_add(1);
        let generation = self.last;
        self.lent = true;
        let lend = Action::Lend { shard: self.id.clone() };
        if self.failures >= self.timing.give_up_after {
            self.halted = true;
            let why = self.last_failure.clone().unwrap_or_default();
            return vec![self.note(generation, Note::Halted(why)), lend];
        }
        self.slot = Slot::Pausing { until: now.after(self.pause()) };
        vec![self.note(generation, Note::Pausing), lend]
    }

    /// Gives the pause after so many failures: `backoff`, doubling, at most a minute.
    pub(super) fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        self.timing.backoff.saturating_mul(1 << doublings).min(LONGEST_PAUSE.max(self.timing.backoff))
    }

    pub(super) fn late(&self, birth: &Birth) -> String {
        match birth.stage {
            Stage::Launching => format!("was not started within {EFFECT_TIMEOUT:?}"),
            Stage::AwaitingReady => format!("was not ready within {:?}", self.timing.ready_timeout),
            Stage::Proving => format!("did not answer within {:?}", self.timing.prove_timeout),
            Stage::Gathered => "waited in vain for those that were to come in with it".to_owned(),
            Stage::Switching => format!("did not take its paths within {EFFECT_TIMEOUT:?}"),
        }
    }
}
