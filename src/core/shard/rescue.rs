//! What already waits at the sockets of a shard whose paths are lent (design, rule 9).
//!
//! Nothing new comes there, and no master of the shard may ever come again. So a *rescue master* is started on those sockets: a
//! generation that is on its way out from its first moment. It serves what waits, and when that is done it falls quiet and
//! leaves as any other. Where it cannot be had either, the sockets of a halted shard are closed: who waits there learns of
//! it at once. In a pause the next start may still serve them.

use super::leaving::{Leaving, LeavingStage};
use super::machine::{Shard, Slot, Wanted};
use super::words::{Action, Left, Note, Quieting};
use crate::model::ids::Generation;
use crate::model::time::Moment;

impl Shard {
    /// Hears what was found at its sockets after its paths were lent.
    pub(super) fn lent(&mut self, left: Left, now: Moment) -> Vec<Action> {
        if !self.lent || self.rescue.is_some() || !matches!(self.slot, Slot::Empty | Slot::Pausing { .. }) {
            return Vec::new();
        }
        match left {
            Left::Stranded if self.wanted != Wanted::Retired => self.begin_rescue(now),
            Left::Served => Vec::new(),
            Left::Stranded | Left::Nothing => self.close_if_given_up(),
        }
    }

    fn begin_rescue(&mut self, now: Moment) -> Vec<Action> {
        self.last = self.last.next();
        let generation = self.last;
        self.rescue = Some(generation);
        let patience = self.timing.drain_timeout;
        let stage = LeavingStage::Quit { until: now.after(patience) };
        self.leaving.push(Leaving { generation, pid: None, master_alive: false, stage, since: now, patience });
        vec![self.note(generation, Note::Rescuing), Action::Rescue { master: self.master(generation) }]
    }

    /// A rescue master runs; it is given up if the shard is to leave for good meanwhile.
    pub(super) fn rescue_launched(&mut self, generation: Generation, pid: u32, now: Moment) -> Option<Vec<Action>> {
        if self.rescue != Some(generation) || self.wanted == Wanted::Retired {
            return None;
        }
        let master = self.master(generation);
        let leaving = self.leaving.iter_mut().find(|leaving| leaving.generation == generation && leaving.is_unborn())?;
        leaving.pid = Some(pid);
        leaving.master_alive = true;
        Some(leaving.quiet_first(&master, Quieting::Replaced, now))
    }

    /// Nothing of a generation is left.
    pub(super) fn after_leaving(&mut self, left: &Leaving) -> Vec<Action> {
        if self.rescue == Some(left.generation) {
            self.rescue = None;
            return self.close_if_given_up();
        }
        let nobody_comes = matches!(self.slot, Slot::Empty | Slot::Pausing { .. });
        if self.lent && self.wanted == Wanted::Up && nobody_comes {
            // Its workers may have served what waited. What they did not come to is found by looking again.
            return vec![Action::Lend { shard: self.id.clone() }];
        }
        Vec::new()
    }

    fn close_if_given_up(&self) -> Vec<Action> {
        let given_up = self.halted && matches!(self.slot, Slot::Empty);
        if given_up { vec![Action::CloseHeld { shard: self.id.clone() }] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::shard::{Input, Signal, Target, Timing};
    use crate::model::ids::{GroupName, MasterId, ShardId};

    const TIMING: Timing = Timing {
        ready_timeout: Duration::from_secs(20),
        prove_timeout: Duration::from_secs(40),
        drain_timeout: Duration::from_secs(300),
        stable_after: Duration::from_secs(60),
        backoff: Duration::from_secs(1),
        give_up_after: 2,
    };

    const STRANDED: Input = Input::Lent { left: Left::Stranded };

    fn id() -> ShardId {
        ShardId::new(&GroupName::new("store"), 1)
    }

    fn master(generation: u64) -> MasterId {
        MasterId::new(&id(), Generation(generation))
    }

    fn tell(shard: &mut Shard, input: Input) -> Vec<Action> {
        shard.handle(input, Moment::START)
    }

    fn failed(generation: u64) -> Input {
        Input::LaunchFailed { generation: Generation(generation), why: "no".to_owned() }
    }

    fn launched(generation: u64) -> Input {
        Input::Launched { generation: Generation(generation), pid: 7 }
    }

    fn pausing() -> Shard {
        let mut shard = Shard::new(id(), TIMING);
        drop(tell(&mut shard, Input::Start));
        assert!(tell(&mut shard, failed(1)).contains(&Action::Lend { shard: id() }));
        shard
    }

    fn halted() -> Shard {
        let mut shard = pausing();
        drop(shard.handle(Input::Time, Moment::START.after(TIMING.backoff)));
        assert!(tell(&mut shard, failed(2)).contains(&Action::Lend { shard: id() }));
        assert!(shard.is_halted());
        shard
    }

    fn close() -> Action {
        Action::CloseHeld { shard: id() }
    }

    #[test]
    fn a_rescue_master_serves_what_waits_and_leaves_when_it_is_quiet() {
        let mut shard = halted();
        assert!(tell(&mut shard, STRANDED).contains(&Action::Rescue { master: master(3) }));
        assert_eq!(tell(&mut shard, STRANDED), [], "one is enough");
        let watch = Action::WatchQuiet { master: master(3), why: Quieting::Replaced };
        assert!(tell(&mut shard, launched(3)).contains(&watch));
        let quit = Action::Signal { master: master(3), signal: Signal::Quit, to: Target::Master };
        assert!(tell(&mut shard, Input::Quiet { generation: Generation(3) }).contains(&quit));
        assert!(tell(&mut shard, Input::Gone { generation: Generation(3) }).contains(&close()), "nobody is left to wait");
    }

    #[test]
    fn sockets_are_closed_only_when_nobody_can_serve_them_any_more() {
        assert_eq!(tell(&mut halted(), Input::Lent { left: Left::Nothing }), [close()]);
        assert_eq!(tell(&mut halted(), Input::Lent { left: Left::Served }), []);
        assert_eq!(tell(&mut pausing(), Input::Lent { left: Left::Nothing }), [], "the next start may serve them");
        let mut shard = halted();
        drop(tell(&mut shard, STRANDED));
        assert_eq!(tell(&mut shard, failed(3)), [Action::Discard { master: master(3) }, close()]);
    }

    #[test]
    fn a_shard_that_comes_back_meanwhile_does_not_mind_it() {
        let mut shard = pausing();
        drop(tell(&mut shard, STRANDED));
        drop(tell(&mut shard, launched(2)));
        let start = shard.handle(Input::Time, Moment::START.after(TIMING.backoff));
        assert!(start.iter().any(|action| matches!(action, Action::Launch { master: new, .. } if *new == master(3))));
        let generation = Generation(3);
        for input in [launched(3), Input::Ready { generation }, Input::Proven { generation }] {
            drop(tell(&mut shard, input));
        }
        assert_eq!(shard.serving().map(|(generation, _)| generation), Some(generation));
        assert_eq!(tell(&mut shard, STRANDED), [], "its paths are its own again");
    }

    #[test]
    fn a_shard_that_leaves_for_good_gives_it_up() {
        let mut shard = halted();
        drop(tell(&mut shard, STRANDED));
        drop(tell(&mut shard, Input::Retire));
        let kill = Action::Signal { master: master(3), signal: Signal::Kill, to: Target::Group };
        assert_eq!(tell(&mut shard, launched(3)), [kill]);
    }
}
