//! A shard whose masters outlived the supervisor that started them.

use super::leaving::{Leaving, LeavingStage};
use super::machine::{Shard, Slot, Wanted};
use super::words::{Action, Note, Quieting};
use crate::model::ids::Generation;
use crate::model::time::Moment;

/// What was found of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// What the operator wanted of it.
    pub wanted: Wanted,
    /// The generation that serves, with its master's pid.
    pub serving: Option<(Generation, u32)>,
    /// Living masters that had been replaced, or had not taken over yet, with their pids.
    pub leaving: Vec<(Generation, u32)>,
    /// The newest generation number ever used.
    pub last: Generation,
}

impl Shard {
    /// Takes over what was found. Only for a shard on which nothing has happened yet.
    pub fn adopt(&mut self, found: &Adopted, now: Moment) -> Vec<Action> {
        let newest = found.leaving.iter().map(|(generation, _)| *generation).chain(found.serving.map(|(generation, _)| generation));
        self.last = newest.chain([found.last]).max().unwrap_or(found.last);
        self.wanted = found.wanted;
        // A parked shard's path may be with a sibling, and was if it could be.
        self.lent = found.wanted == Wanted::Parked;
        let mut actions = Vec::new();
        if let Some((generation, pid)) = found.serving {
            self.slot = Slot::Serving { generation, pid, since: now };
            self.ever_served = true;
            actions.push(self.note(generation, Note::Serving));
        }
        for (generation, pid) in &found.leaving {
            let master = self.master(*generation);
            let mut leaving = Leaving {
                generation: *generation,
                pid: Some(*pid),
                master_alive: true,
                stage: LeavingStage::Orphaned,
                since: now,
                patience: self.timing.drain_timeout,
            };
            // Where nobody serves, it is the only one who does: it stays until a successor serves, as orphans do.
            if found.serving.is_some() {
                actions.extend(leaving.quiet_first(&master, Quieting::Replaced, now));
            }
            self.leaving.push(leaving);
        }
        actions
    }
}
