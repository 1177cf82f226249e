//! What is done to the fleet from outside, and what a fair world must come back to.

use std::collections::BTreeSet;
use std::time::Duration;

use polyfpm::core::fleet::{JobKind, JobOrder, NginxStep};
use polyfpm::core::shard::{Slot, Wanted};
use polyfpm::model::ids::{MasterId, ShardId};

use crate::shadow::promise;
use crate::site::{Life, Quality};
use crate::world::{Event, Fault, Passed, World};

/// How many things may happen before a fair world is at rest: a ladder takes about ten a master, a turn about twenty.
const PATIENCE_STEPS: usize = 20_000;

impl World {
    /// Lets one thing happen, by chance.
    pub(crate) fn step(&mut self) -> Result<(), Fault> {
        let knobs = self.knobs.clone();
        let chances = [knobs.command, knobs.crash, knobs.blueprint, knobs.again, knobs.jump];
        let mut thrown = self.dice.below(1_000);
        for (what, chance) in chances.into_iter().enumerate() {
            if thrown < chance {
                return match what {
                    0 => self.command(),
                    1 => {
                        self.misfortune();
                        Ok(())
                    }
                    2 => self.change_blueprint(),
                    3 => self.tell_again(),
                    _ => {
                        self.now = self.now.after(self.dice.delay(Duration::from_secs(900)));
                        self.time()
                    }
                };
            }
            thrown -= chance;
        }
        if self.pass()? == Passed::NothingLeft {
            self.command()?;
        }
        Ok(())
    }

    /// A master is killed, or workers that outlived theirs end.
    fn misfortune(&mut self) {
        let at = self.dice.index(self.masters.len());
        let Some((id, life)) = self.masters.iter().nth(at).map(|(id, master)| (id.clone(), master.life)) else { return };
        let orphans = self.dice.chance(600);
        match life {
            Life::Alive => self.dies(&id, orphans),
            Life::Orphaned => self.workers_end(&id),
            Life::Launching | Life::Stillborn | Life::Gone => {}
        }
    }

    fn some_shards(&mut self) -> Vec<ShardId> {
        let mut left = self.ids.clone();
        let count = 1 + self.dice.index(left.len());
        let mut chosen = Vec::new();
        for _ in 0..count {
            let at = self.dice.index(left.len());
            chosen.push(left.swap_remove(at));
        }
        chosen
    }

    /// Gives sets of shards that share listeners: none, some of them, or all.
    fn some_sets(&mut self) -> Vec<BTreeSet<ShardId>> {
        match self.dice.below(3) {
            0 => Vec::new(),
            1 => vec![self.some_shards().into_iter().collect()],
            _ => vec![self.ids.iter().cloned().collect()],
        }
    }

    /// The operator wants something.
    pub(crate) fn command(&mut self) -> Result<(), Fault> {
        let shards = self.some_shards();
        let Some(one) = shards.first().cloned() else { return Ok(()) };
        let single = vec![one.clone()];
        let (kind, shards, nginx) = match self.dice.below(16) {
            0..=4 => (JobKind::Restart, shards, NginxStep::None),
            5..=7 => {
                if self.job.is_none() {
                    for id in &shards {
                        let quality = if self.dice.chance(self.knobs.bad_blueprint) { Quality::Dies } else { Quality::Good };
                        self.set_blueprint(id, quality)?;
                    }
                }
                (JobKind::Apply, shards, NginxStep::Last)
            }
            8 => (JobKind::Park, single, NginxStep::None),
            9 => (JobKind::Drain, single, NginxStep::First),
            10 | 11 => (JobKind::Unpark, single, if self.dice.chance(500) { NginxStep::Last } else { NginxStep::None }),
            12 => (JobKind::Heal, single, NginxStep::None),
            13 => return self.start(&one),
            14 => {
                self.fleet.forget_gone();
                return self.carry_out(Vec::new());
            }
            _ if self.job.is_none() => return self.nginx_ends(),
            _ => return Ok(()),
        };
        let mut retire = Vec::new();
        if kind == JobKind::Apply && self.job.is_none() && self.dice.chance(300) {
            retire.extend(self.ids.iter().find(|id| !shards.contains(id)).cloned());
        }
        let together = self.some_sets();
        self.begin(JobOrder { kind, shards, together, retire, nginx })
    }

    /// Starts a shard, as the supervisor's own start does.
    pub(crate) fn start(&mut self, id: &ShardId) -> Result<(), Fault> {
        self.trace(|| format!("start {id}"));
        self.starting = Some(id.clone());
        self.trouble(id);
        let actions = self.fleet.start(id, self.now);
        let result = self.carry_out(actions);
        self.starting = None;
        result
    }

    /// Leaves the world to itself: nobody interferes, what is new is good, and everything that is told is heard.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), Fault> {
        self.trace(|| "fair from here".to_owned());
        self.fair = true;
        for id in self.ids.clone() {
            if self.sites.get(&id).is_some_and(|site| site.quality != Quality::Good) {
                self.set_blueprint(&id, Quality::Good)?;
            }
        }
        let mut left = PATIENCE_STEPS;
        while self.pass()? == Passed::Something || self.help_the_halted()? == Passed::Something {
            left -= 1;
            promise(left > 0, || "a fair world does not come to rest".to_owned())?;
        }
        self.rest()?;
        self.fair = false;
        Ok(())
    }

    /// The operator starts what was halted.
    fn help_the_halted(&mut self) -> Result<Passed, Fault> {
        let halted = self.fleet.shards().find(|shard| shard.is_halted()).map(|shard| shard.id().clone());
        match halted {
            Some(id) => self.start(&id).map(|()| Passed::Something),
            None => Ok(Passed::NothingLeft),
        }
    }

    /// What must hold when nothing is left to happen.
    fn rest(&mut self) -> Result<(), Fault> {
        promise(self.job.is_none(), || "everything rests and a job is under way".to_owned())?;
        for shard in self.fleet.shards() {
            let id = shard.id();
            promise(shard.leaving().is_empty(), || format!("{id} rests and generations are leaving"))?;
            match shard.wanted() {
                Wanted::Up => promise(matches!(shard.slot(), Slot::Serving { .. }), || format!("{id} rests and does not serve"))?,
                Wanted::Parked | Wanted::Retired => promise(shard.is_gone(), || format!("{id} rests and is not down"))?,
            }
        }
        for (id, master) in &self.masters {
            let serving = self.sites.get(&id.shard).and_then(|site| site.serving);
            let serves = serving.is_some_and(|(generation, _)| generation == id.generation);
            promise(serves && master.life == Life::Alive, || format!("{id} rests and is {:?}", master.life))?;
        }
        Ok(())
    }

    /// Stops everything, lets a hostile world do its worst, and then wants nothing left.
    pub(crate) fn end(&mut self, steps: usize) -> Result<(), Fault> {
        self.stop()?;
        for _ in 0..steps {
            self.step()?;
        }
        self.come_to_rest()?;
        promise(self.fleet.is_gone() && self.masters.is_empty(), || "stopped, and something is left".to_owned())
    }

    /// Tells whether the shard is being started by the supervisor itself in the present call.
    pub(crate) fn is_starting(&self, id: &ShardId) -> bool {
        self.starting.as_ref() == Some(id)
    }

    /// Tells what is believed to be alive, for a fault's message.
    pub(crate) fn alive(&self) -> Vec<&MasterId> {
        self.masters.iter().filter(|(_, master)| master.life == Life::Alive).map(|(id, _)| id).collect()
    }

    /// Counts what is still to happen, for a fault's message.
    pub(crate) fn pending(&self) -> Vec<&Event> {
        self.events.values().collect()
    }
}
