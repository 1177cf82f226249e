//! The machine itself: one function changes the slot, every input has its own small one.

use std::time::Duration;

use super::leaving::{Leaving, LeavingStage, UNREADY_GRACE};
use super::words::{Action, Blueprint, Input, Note, Quieting, Sockets};
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::time::Moment;

/// The longest pause between two failed starts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long a launch or a switch may take: both are a few system calls a listener, but a loaded machine may swap.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The time-outs of a shard, from `[restart]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a master may take to become ready.
    pub ready_timeout: Duration,
    /// How long proving may take: answers and warm-up together.
    pub prove_timeout: Duration,
    /// How long a busy worker of an old generation may finish.
    pub drain_timeout: Duration,
    /// Served so long: earlier failures are forgotten.
    pub stable_after: Duration,
    /// First pause after a failed start.
    pub backoff: Duration,
    /// Failed starts in a row after which the shard is halted.
    pub give_up_after: u32,
}

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Serving.
    Up,
    /// Down, its listeners held.
    Parked,
    /// Down for good.
    Retired,
}

/// How far a new master is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Sockets are bound, the process is started.
    Launching,
    /// It runs; its READY is awaited.
    AwaitingReady,
    /// It is asked and warmed up.
    Proving,
    /// Its sockets take the paths.
    Switching,
}

/// A master on its way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Birth {
    /// Its generation.
    pub generation: Generation,
    /// How far it is.
    pub stage: Stage,
    /// Its pid, once it runs.
    pub pid: Option<u32>,
    /// When the stage has failed.
    pub until: Moment,
    sockets: Sockets,
    blueprint: Blueprint,
}

/// What the slot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// Nothing serves and nothing is on its way.
    Empty,
    /// Nothing serves; the next start follows.
    Pausing {
        /// When.
        until: Moment,
    },
    /// Nothing serves; a master is on its way.
    Starting(Birth),
    /// A master serves.
    Serving {
        /// Which generation.
        generation: Generation,
        /// Its pid.
        pid: u32,
        /// Since when.
        since: Moment,
    },
    /// A master serves and its successor is on its way.
    HandingOver {
        /// The serving generation.
        generation: Generation,
        /// Its pid.
        pid: u32,
        /// Since when it serves.
        since: Moment,
        /// The successor.
        next: Birth,
    },
}

/// One shard.
#[derive(Debug, Clone)]
pub struct Shard {
    id: ShardId,
    timing: Timing,
    wanted: Wanted,
    slot: Slot,
    leaving: Vec<Leaving>,
    last: Generation,
    failures: u32,
    halted: bool,
    lent: bool,
    ever_served: bool,
    blueprint: BlueprintTrust,
    last_failure: Option<String>,
}

/// What is known of the present configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlueprintTrust {
    /// It has served, or nothing else ever has.
    Trusted,
    /// It is new; an older one has served.
    Untried,
    /// It failed; an older one has served.
    Suspect,
}

impl Shard {
    /// Makes a shard with an empty slot that wants to be up.
    pub fn new(id: ShardId, timing: Timing) -> Self {
        Self {
            id,
            timing,
            wanted: Wanted::Up,
            slot: Slot::Empty,
            leaving: Vec::new(),
            last: Generation(0),
            failures: 0,
            halted: false,
            lent: false,
            ever_served: false,
            blueprint: BlueprintTrust::Trusted,
            last_failure: None,
        }
    }

    /// Gives its name.
    pub fn id(&self) -> &ShardId {
        &self.id
    }

    /// Gives what the operator wants of it.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Gives what its slot is.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Gives its generations on their way out.
    pub fn leaving(&self) -> &[Leaving] {
        &self.leaving
    }

    /// Gives the newest generation number used.
    pub fn last_generation(&self) -> Generation {
        self.last
    }

    /// Gives the failed starts in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Tells whether the budget of failed starts is spent.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Gives why the last start failed or the last master died; forgotten once a successor is stable.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// Gives the serving generation and its pid.
    pub fn serving(&self) -> Option<(Generation, u32)> {
        match &self.slot {
            Slot::Serving { generation, pid, .. } | Slot::HandingOver { generation, pid, .. } => Some((*generation, *pid)),
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) => None,
        }
    }

    /// Gives since when the serving generation serves.
    pub fn serving_since(&self) -> Option<Moment> {
        match &self.slot {
            Slot::Serving { since, .. } | Slot::HandingOver { since, .. } => Some(*since),
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) => None,
        }
    }

    /// Gives the master on its way in.
    pub fn birth(&self) -> Option<&Birth> {
        match &self.slot {
            Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } => Some(birth),
            Slot::Empty | Slot::Pausing { .. } | Slot::Serving { .. } => None,
        }
    }

    /// Tells whether nothing of the shard is alive or on its way.
    pub fn is_gone(&self) -> bool {
        matches!(self.slot, Slot::Empty) && self.leaving.is_empty()
    }

    /// Takes new time-outs; running deadlines stay as they are.
    pub fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Says that the present configuration differs from the one that last served.
    pub fn blueprint_changed(&mut self) {
        if self.ever_served {
            self.blueprint = BlueprintTrust::Untried;
        }
    }

    /// Gives the next moment at which [`Input::Time`] has something to do.
    pub fn deadline(&self) -> Option<Moment> {
        let slot = match &self.slot {
            Slot::Empty => None,
            Slot::Serving { since, .. } => (self.failures > 0).then(|| since.after(self.timing.stable_after)),
            Slot::Pausing { until } => Some(*until),
            Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } => Some(birth.until),
        };
        self.leaving.iter().filter_map(Leaving::deadline).chain(slot).min()
    }

    /// Takes one input and gives what has to be done, in order.
    #[must_use]
    pub fn handle(&mut self, input: Input, now: Moment) -> Vec<Action> {
        match input {
            Input::Start => self.start(now),
            Input::Roll => self.roll(now),
            Input::Park => self.leave_for(Wanted::Parked, now),
            Input::Retire => self.leave_for(Wanted::Retired, now),
            Input::Launched { generation, pid } => self.launched(generation, pid, now),
            Input::Ready { generation } => self.ready(generation, now),
            Input::Proven { generation } => self.proven(generation, now),
            Input::Switched { generation } => self.switched(generation, now),
            Input::LaunchFailed { generation, why } => self.launch_failed(generation, why, now),
            Input::NotProven { generation, why } | Input::SwitchFailed { generation, why } => self.birth_failed(generation, why, now),
            Input::Died { generation, why } => self.died(generation, why, now),
            Input::Quiet { generation } => self.quiet(generation, now),
            Input::Detained { generation } => self.detained(generation),
            Input::Gone { generation } => self.gone(generation),
            Input::Time => self.on_time(now),
        }
    }

    fn master(&self, generation: Generation) -> MasterId {
        MasterId::new(&self.id, generation)
    }

    fn note(&self, generation: Generation, note: Note) -> Action {
        Action::Note { master: self.master(generation), note }
    }

    fn start(&mut self, now: Moment) -> Vec<Action> {
        self.wanted = Wanted::Up;
        match self.slot {
            Slot::Empty | Slot::Pausing { .. } => {
                if self.halted {
                    self.failures = 0;
                    self.halted = false;
                }
                self.begin_start(now)
            }
            Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => Vec::new(),
        }
    }

    fn begin_start(&mut self, now: Moment) -> Vec<Action> {
        let blueprint = match self.blueprint {
            BlueprintTrust::Suspect => Blueprint::LastGood,
            BlueprintTrust::Trusted | BlueprintTrust::Untried => Blueprint::Current,
        };
        let (birth, actions) = self.conceive(Sockets::Held, blueprint, now);
        self.slot = Slot::Starting(birth);
        actions
    }

    fn roll(&mut self, now: Moment) -> Vec<Action> {
        let Slot::Serving { generation, pid, since } = self.slot else { return Vec::new() };
        if self.wanted != Wanted::Up {
            return Vec::new();
        }
        let (next, actions) = self.conceive(Sockets::New, Blueprint::Current, now);
        self.slot = Slot::HandingOver { generation, pid, since, next };
        actions
    }

    fn conceive(&mut self, sockets: Sockets, blueprint: Blueprint, now: Moment) -> (Birth, Vec<Action>) {
        self.last = self.last.next();
        let generation = self.last;
        let until = now.after(EFFECT_TIMEOUT);
        let birth = Birth { generation, stage: Stage::Launching, pid: None, until, sockets, blueprint };
        let launch = Action::Launch { master: self.master(generation), sockets, blueprint };
        (birth, vec![self.note(generation, Note::Starting), launch])
    }

    fn birth_mut(&mut self, generation: Generation) -> Option<&mut Birth> {
        match &mut self.slot {
            Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } => (birth.generation == generation).then_some(birth),
            Slot::Empty | Slot::Pausing { .. } | Slot::Serving { .. } => None,
        }
    }

    fn launched(&mut self, generation: Generation, pid: u32, now: Moment) -> Vec<Action> {
        let until = now.after(self.timing.ready_timeout);
        if let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::Launching) {
            birth.pid = Some(pid);
            birth.stage = Stage::AwaitingReady;
            birth.until = until;
            return vec![self.note(generation, Note::Launched)];
        }
        // Launched after it was given up: it is on the list of those that leave, and now there is somebody to tell.
        let master = self.master(generation);
        self.leaving
            .iter_mut()
            .find(|leaving| leaving.generation == generation)
            .map(|leaving| {
                leaving.pid = Some(pid);
                leaving.master_alive = true;
                leaving.kill(&master, now)
            })
            .unwrap_or_default()
    }

    fn ready(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let until = now.after(self.timing.prove_timeout);
        let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::AwaitingReady) else { return Vec::new() };
        birth.stage = Stage::Proving;
        birth.until = until;
        vec![self.note(generation, Note::Proving), Action::Prove { master: self.master(generation) }]
    }

    fn proven(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let Some(birth) = self.birth_mut(generation).filter(|birth| birth.stage == Stage::Proving) else { return Vec::new() };
        if birth.sockets == Sockets::Held {
            return self.begin_serving(now);
        }
        birth.stage = Stage::Switching;
        birth.until = now.after(EFFECT_TIMEOUT);
        vec![self.note(generation, Note::Switching), Action::Switch { master: self.master(generation) }]
    }

    fn switched(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        if self.birth_mut(generation).is_some_and(|birth| birth.stage == Stage::Switching) {
            return self.begin_serving(now);
        }
        Vec::new()
    }

    /// The birth becomes the serving master; whoever served or was orphaned leaves.
    fn begin_serving(&mut self, now: Moment) -> Vec<Action> {
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
        if birth.blueprint == Blueprint::Current {
            self.blueprint = BlueprintTrust::Trusted;
            self.ever_served = true;
            if old.is_some() {
                self.last_failure = None;
            }
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

    fn release_orphans(&mut self, why: Quieting, now: Moment) -> Vec<Action> {
        let id = self.id.clone();
        self.leaving
            .iter_mut()
            .filter(|leaving| leaving.stage == LeavingStage::Orphaned)
            .flat_map(|leaving| leaving.quiet_first(&MasterId::new(&id, leaving.generation), why, now))
            .collect()
    }

    /// A living master that served begins to leave.
    fn depart(&mut self, generation: Generation, pid: u32, why: Quieting, now: Moment) -> Vec<Action> {
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
    fn dismiss(&mut self, birth: &Birth, now: Moment) -> Vec<Action> {
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

    fn launch_failed(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        let discard = Action::Discard { master: self.master(generation) };
        if self.birth_mut(generation).is_some() {
            let mut actions = vec![self.note(generation, Note::Failed(why.clone())), discard];
            let _birth = self.abandon_birth();
            actions.extend(self.after_failed_birth(why, now));
            return actions;
        }
        // It was given up while it was being launched.
        self.leaving.retain(|leaving| leaving.generation != generation);
        vec![discard]
    }

    /// Takes the birth out of the slot; the serving master, if any, is alone again.
    fn abandon_birth(&mut self) -> Option<Birth> {
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

    fn birth_failed(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        if self.birth_mut(generation).is_none() {
            return Vec::new();
        }
        let mut actions = vec![self.note(generation, Note::Failed(why.clone()))];
        if let Some(birth) = self.abandon_birth() {
            actions.extend(self.dismiss(&birth, now));
        }
        actions.extend(self.after_failed_birth(why, now));
        actions
    }

    fn after_failed_birth(&mut self, why: String, now: Moment) -> Vec<Action> {
        self.last_failure = Some(why);
        if self.blueprint == BlueprintTrust::Untried {
            self.blueprint = BlueprintTrust::Suspect;
        }
        match self.slot {
            Slot::Empty => self.pause_or_halt(now),
            Slot::Pausing { .. } | Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => Vec::new(),
        }
    }

    fn pause_or_halt(&mut self, now: Moment) -> Vec<Action> {
        self.failures = self.failures.saturating_add(1);
        let generation = self.last;
        self.lent = true;
        let lend = Action::Lend { shard: self.id.clone() };
        if self.failures >= self.timing.give_up_after {
            self.halted = true;
            let why = self.last_failure.clone().unwrap_or_default();
            let close = Action::CloseHeld { shard: self.id.clone() };
            return vec![self.note(generation, Note::Halted(why)), lend, close];
        }
        self.slot = Slot::Pausing { until: now.after(self.pause()) };
        vec![self.note(generation, Note::Pausing), lend]
    }

    /// Gives the pause after so many failures: `backoff`, doubling, at most a minute.
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        self.timing.backoff.saturating_mul(1 << doublings).min(LONGEST_PAUSE.max(self.timing.backoff))
    }

    fn died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
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

    fn birth_died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
        let master = self.master(generation);
        let mut actions = vec![self.note(generation, Note::Failed(why.clone()))];
        if let Some(birth) = self.abandon_birth() {
            let mut leaving = Leaving {
                generation,
                pid: birth.pid,
                master_alive: false,
                stage: LeavingStage::Orphaned,
                since: now,
                patience: UNREADY_GRACE.min(self.timing.drain_timeout),
            };
            actions.extend(leaving.quit(&master, now));
            self.leaving.push(leaving);
        }
        actions.extend(self.after_failed_birth(why, now));
        actions
    }

    fn serving_died(&mut self, generation: Generation, why: String, now: Moment) -> Vec<Action> {
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

    fn leave_for(&mut self, wanted: Wanted, now: Moment) -> Vec<Action> {
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

    fn quiet(&mut self, generation: Generation, now: Moment) -> Vec<Action> {
        let master = self.master(generation);
        let Some(leaving) = self.leaving.iter_mut().find(|leaving| leaving.generation == generation) else { return Vec::new() };
        match leaving.stage {
            LeavingStage::Quieting { .. } => leaving.quit(&master, now),
            LeavingStage::Orphaned | LeavingStage::Quit { .. } | LeavingStage::Term { .. } | LeavingStage::Kill { .. } => Vec::new(),
        }
    }

    fn detained(&mut self, generation: Generation) -> Vec<Action> {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.generation == generation) {
            if let LeavingStage::Quieting { detained, .. } = &mut leaving.stage {
                *detained = true;
            }
        }
        Vec::new()
    }

    fn gone(&mut self, generation: Generation) -> Vec<Action> {
        let before = self.leaving.len();
        self.leaving.retain(|leaving| leaving.generation != generation || leaving.master_alive);
        if self.leaving.len() == before {
            return Vec::new();
        }
        vec![self.note(generation, Note::Gone), Action::Discard { master: self.master(generation) }]
    }

    fn on_time(&mut self, now: Moment) -> Vec<Action> {
        let id = self.id.clone();
        let mut actions: Vec<Action> =
            self.leaving.iter_mut().flat_map(|leaving| leaving.on_time(&MasterId::new(&id, leaving.generation), now)).collect();
        match &self.slot {
            Slot::Pausing { until } if now >= *until => actions.extend(self.begin_start(now)),
            Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } if now >= birth.until => {
                let (generation, why) = (birth.generation, self.late(birth));
                actions.extend(self.birth_failed(generation, why, now));
            }
            Slot::Serving { since, .. } if self.failures > 0 && now >= since.after(self.timing.stable_after) => {
                self.failures = 0;
                if self.blueprint == BlueprintTrust::Trusted {
                    self.last_failure = None;
                }
            }
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => {}
        }
        actions
    }

    fn late(&self, birth: &Birth) -> String {
        match birth.stage {
            Stage::Launching => format!("was not started within {EFFECT_TIMEOUT:?}"),
            Stage::AwaitingReady => format!("was not ready within {:?}", self.timing.ready_timeout),
            Stage::Proving => format!("did not answer within {:?}", self.timing.prove_timeout),
            Stage::Switching => format!("did not take its paths within {EFFECT_TIMEOUT:?}"),
        }
    }
}
