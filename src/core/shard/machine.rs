//! The machine itself: its parts, what it tells of itself, and where each input goes.

use std::time::Duration;

use super::leaving::Leaving;
use super::words::{Action, Blueprint, Input, Note, Sockets};
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::time::Moment;

/// How long a launch or a switch may take: both are a few system calls a listener, but a loaded machine may swap.
pub(super) const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// It has been proven; those that come in together with it have not.
    Gathered,
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
    pub(super) sockets: Sockets,
    pub(super) made_from: MadeFrom,
}

impl Birth {
    /// Tells whether it waits for others.
    pub fn comes_together(&self) -> bool {
        self.sockets == Sockets::Together
    }
}

/// Which configuration a birth was made from, as things stand now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeFrom {
    /// The present one.
    Present,
    /// One before it.
    Older,
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
    pub(super) id: ShardId,
    pub(super) timing: Timing,
    pub(super) wanted: Wanted,
    pub(super) slot: Slot,
    pub(super) leaving: Vec<Leaving>,
    pub(super) last: Generation,
    pub(super) failures: u32,
    pub(super) halted: bool,
    pub(super) lent: bool,
    pub(super) rescue: Option<Generation>,
    pub(super) ever_served: bool,
    pub(super) blueprint: BlueprintTrust,
    pub(super) last_failure: Option<String>,
}

/// What is known of the present configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlueprintTrust {
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
        Self::after(id, timing, Generation(0))
    }

    /// Makes a shard that counts on from the last generation of a shard of the same name, which was forgotten.
    pub fn after(id: ShardId, timing: Timing, last: Generation) -> Self {
        Self {
            id,
            timing,
            wanted: Wanted::Up,
            slot: Slot::Empty,
            leaving: Vec::new(),
            last,
            failures: 0,
            halted: false,
            lent: false,
            rescue: None,
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
        // A birth on its way was made from the one before: how it ends says nothing about the new one.
        if let Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } = &mut self.slot {
            birth.made_from = MadeFrom::Older;
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
            Input::Roll => self.replace(Sockets::New, Blueprint::Current, now),
            Input::RollTogether => self.replace(Sockets::Together, Blueprint::Current, now),
            Input::GoOn => self.go_on(now),
            Input::CallOff { why } => self.call_off(why, now),
            Input::Heal => self.replace(Sockets::Held, self.trusted_blueprint(), now),
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
            Input::Lent { left } => self.lent(left, now),
            Input::Gone { generation } => self.gone(generation, now),
            Input::Time => self.on_time(now),
        }
    }

    /// Forgets earlier failures once the serving master has served long enough, even if it is about to be replaced or has
    /// just died: the clock may not have been looked at in between.
    pub(super) fn forget_if_stable(&mut self, now: Moment) {
        if self.serving_since().is_some_and(|since| now >= since.after(self.timing.stable_after)) {
            self.failures = 0;
        }
    }

    pub(super) fn master(&self, generation: Generation) -> MasterId {
        MasterId::new(&self.id, generation)
    }

    pub(super) fn note(&self, generation: Generation, note: Note) -> Action {
        Action::Note { master: self.master(generation), note }
    }

    pub(super) fn birth_mut(&mut self, generation: Generation) -> Option<&mut Birth> {
        match &mut self.slot {
            Slot::Starting(birth) | Slot::HandingOver { next: birth, .. } => (birth.generation == generation).then_some(birth),
            Slot::Empty | Slot::Pausing { .. } | Slot::Serving { .. } => None,
        }
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
            Slot::Empty | Slot::Pausing { .. } | Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => {}
        }
        self.forget_in_time(now);
        actions
    }

    /// Forgets earlier failures, and what they were, when the serving master alone has served long enough.
    pub(super) fn forget_in_time(&mut self, now: Moment) {
        if self.failures > 0 && matches!(self.slot, Slot::Serving { .. }) {
            self.forget_if_stable(now);
            if self.failures == 0 && self.blueprint == BlueprintTrust::Trusted {
                self.last_failure = None;
            }
        }
    }
}
