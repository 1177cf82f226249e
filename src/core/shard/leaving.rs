//! Generations on their way out: quiet, then SIGQUIT, SIGTERM, SIGKILL, each with its own deadline (P14).

use std::time::Duration;

use super::words::{Action, Note, Quieting, Signal, Target};
use crate::model::ids::{Generation, MasterId};
use crate::model::time::Moment;

/// How long SIGTERM and each SIGKILL may take: php-fpm ends idle workers in milliseconds; a process in an uninterruptible
/// call needs the time its device needs, and nothing but waiting helps.
const HARD_STEP: Duration = Duration::from_secs(5);

/// How long a master that never became ready may take to leave by itself.
pub(super) const UNREADY_GRACE: Duration = Duration::from_secs(10);

/// Where on the way out a generation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeavingStage {
    /// Its master died; its workers go on serving until a successor does.
    Orphaned,
    /// It still serves what waits at its old sockets.
    Quieting {
        /// When it is told to quit all the same.
        until: Moment,
        /// Whether only something outside the shard holds it.
        detained: bool,
    },
    /// It was told to finish.
    Quit {
        /// When SIGTERM follows.
        until: Moment,
    },
    /// It was told to stop.
    Term {
        /// When SIGKILL follows.
        until: Moment,
    },
    /// It was killed.
    Kill {
        /// When SIGKILL is sent again.
        until: Moment,
    },
}

/// One generation on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    pub(super) generation: Generation,
    pub(super) pid: Option<u32>,
    pub(super) master_alive: bool,
    pub(super) stage: LeavingStage,
    pub(super) since: Moment,
    pub(super) patience: Duration,
}

impl Leaving {
    /// Gives the generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Gives the master's pid while the master lives.
    pub fn pid(&self) -> Option<u32> {
        self.pid.filter(|_| self.master_alive)
    }

    /// Gives the stage.
    pub fn stage(&self) -> LeavingStage {
        self.stage
    }

    /// Gives when it began to leave.
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Gives the word for people.
    pub fn word(&self) -> &'static str {
        match self.stage {
            _ if self.is_unborn() => "launch",
            LeavingStage::Orphaned => "orphaned, serving",
            LeavingStage::Quieting { detained: true, .. } => "nginx",
            LeavingStage::Quieting { .. } => "queue",
            LeavingStage::Quit { .. } => "requests",
            LeavingStage::Term { .. } => "SIGTERM",
            LeavingStage::Kill { .. } => "SIGKILL",
        }
    }

    /// Tells whether it was given up before anybody saw it run: there is nobody to signal until its launch is answered.
    pub(super) fn is_unborn(&self) -> bool {
        self.pid.is_none()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.is_unborn() {
            return None;
        }
        match self.stage {
            LeavingStage::Orphaned => None,
            LeavingStage::Quieting { until, .. }
            | LeavingStage::Quit { until }
            | LeavingStage::Term { until }
            | LeavingStage::Kill { until } => Some(until),
        }
    }

    fn target(&self) -> Target {
        if self.master_alive { Target::Master } else { Target::Group }
    }

    pub(super) fn quiet_first(&mut self, master: &MasterId, why: Quieting, now: Moment) -> Vec<Action> {
        self.stage = LeavingStage::Quieting { until: now.after(self.patience), detained: false };
        vec![Action::Note { master: master.clone(), note: Note::Leaving }, Action::WatchQuiet { master: master.clone(), why }]
    }

    pub(super) fn quit(&mut self, master: &MasterId, now: Moment) -> Vec<Action> {
        self.stage = LeavingStage::Quit { until: now.after(self.patience) };
        vec![
            Action::Note { master: master.clone(), note: Note::Quitting },
            Action::Signal { master: master.clone(), signal: Signal::Quit, to: self.target() },
        ]
    }

    pub(super) fn kill(&mut self, master: &MasterId, now: Moment) -> Vec<Action> {
        self.stage = LeavingStage::Kill { until: now.after(HARD_STEP) };
        vec![Action::Signal { master: master.clone(), signal: Signal::Kill, to: Target::Group }]
    }

    /// Takes the next rung when its deadline has passed.
    pub(super) fn on_time(&mut self, master: &MasterId, now: Moment) -> Vec<Action> {
        if self.deadline().is_none_or(|until| now < until) {
            return Vec::new();
        }
        match self.stage {
            LeavingStage::Orphaned => Vec::new(),
            LeavingStage::Quieting { .. } => self.quit(master, now),
            LeavingStage::Quit { .. } => {
                self.stage = LeavingStage::Term { until: now.after(HARD_STEP) };
                vec![
                    Action::Note { master: master.clone(), note: Note::Hardened(Signal::Term) },
                    Action::Signal { master: master.clone(), signal: Signal::Term, to: self.target() },
                ]
            }
            LeavingStage::Term { .. } => {
                let mut actions = vec![Action::Note { master: master.clone(), note: Note::Hardened(Signal::Kill) }];
                actions.extend(self.kill(master, now));
                actions
            }
            LeavingStage::Kill { .. } => self.kill(master, now),
        }
    }
}
