//! A shard whose masters outlived the supervisor that started them.

use super::leaving::{Leaving, LeavingStage};
use super::machine::{BlueprintTrust, Shard, Slot, Wanted};
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
    /// Dead masters whose workers go on serving, with their process groups.
    pub orphaned: Vec<(Generation, u32)>,
    /// The newest generation number ever used.
    pub last: Generation,
}

impl Shard {
    /// Takes over what was found. Only for a shard on which nothing has happened yet.
    pub fn adopt(&mut self, found: &Adopted, now: Moment) -> Vec<Action> {
        let newest = found.leaving.iter().chain(&found.orphaned).chain(&found.serving).map(|(generation, _)| *generation);
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
        if !found.orphaned.is_empty() && !self.ever_served {
            // The present configuration may be another one than theirs, and no good.
            self.ever_served = true;
            self.blueprint = BlueprintTrust::Untried;
        }
        let dead = found.orphaned.iter().map(|one| (one, false));
        for ((generation, pid), master_alive) in found.leaving.iter().map(|one| (one, true)).chain(dead) {
            let master = self.master(*generation);
            let mut leaving = Leaving {
                generation: *generation,
                pid: Some(*pid),
                master_alive,
                stage: LeavingStage::Orphaned,
                since: now,
                patience: self.timing.drain_timeout,
            };
            if found.serving.is_some() {
                actions.extend(leaving.quiet_first(&master, Quieting::Replaced, now));
            } else if found.wanted == Wanted::Parked {
                actions.extend(leaving.quiet_first(&master, Quieting::Parked, now));
            }
            // Else it is the only one who serves: it stays until a successor does, as orphans do.
            self.leaving.push(leaving);
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::shard::{Blueprint, Input, Quieting, Signal, Sockets, Target, Timing};
    use crate::model::ids::{GroupName, MasterId, ShardId};

    const TIMING: Timing = Timing {
        ready_timeout: Duration::from_secs(20),
        prove_timeout: Duration::from_secs(40),
        drain_timeout: Duration::from_secs(300),
        stable_after: Duration::from_secs(60),
        backoff: Duration::from_secs(1),
        give_up_after: 4,
    };

    fn shard() -> Shard {
        Shard::new(ShardId::new(&GroupName::new("store"), 1), TIMING)
    }

    fn master(generation: u64) -> MasterId {
        MasterId::new(shard().id(), Generation(generation))
    }

    fn orphaned(wanted: Wanted) -> Adopted {
        Adopted { wanted, serving: None, leaving: Vec::new(), orphaned: vec![(Generation(3), 70)], last: Generation(3) }
    }

    fn serve(shard: &mut Shard, generation: u64) -> Vec<Action> {
        let generation = Generation(generation);
        let inputs = [Input::Launched { generation, pid: 80 }, Input::Ready { generation }, Input::Proven { generation }];
        inputs.into_iter().flat_map(|input| shard.handle(input, Moment::START)).collect()
    }

    #[test]
    fn workers_of_a_dead_master_serve_until_a_successor_on_their_sockets_does() {
        let mut shard = shard();
        assert_eq!(shard.adopt(&orphaned(Wanted::Up), Moment::START), []);
        let started = shard.handle(Input::Start, Moment::START);
        let launch = Action::Launch { master: master(4), sockets: Sockets::Held, blueprint: Blueprint::Current };
        assert!(started.contains(&launch), "{started:?}");
        let served = serve(&mut shard, 4);
        assert!(served.contains(&Action::WatchQuiet { master: master(3), why: Quieting::Replaced }), "{served:?}");
        let told = shard.handle(Input::Quiet { generation: Generation(3) }, Moment::START);
        assert!(told.contains(&Action::Signal { master: master(3), signal: Signal::Quit, to: Target::Group }), "{told:?}");
    }

    #[test]
    fn what_they_were_started_with_is_the_last_good_configuration() {
        let mut shard = shard();
        drop(shard.adopt(&orphaned(Wanted::Up), Moment::START));
        drop(shard.handle(Input::Start, Moment::START));
        drop(shard.handle(Input::LaunchFailed { generation: Generation(4), why: "no".to_owned() }, Moment::START));
        let again = shard.handle(Input::Time, Moment::START.after(TIMING.backoff));
        let launch = Action::Launch { master: master(5), sockets: Sockets::Held, blueprint: Blueprint::LastGood };
        assert!(again.contains(&launch), "{again:?}");
    }

    #[test]
    fn of_a_parked_shard_they_leave() {
        let actions = shard().adopt(&orphaned(Wanted::Parked), Moment::START);
        assert!(actions.contains(&Action::WatchQuiet { master: master(3), why: Quieting::Parked }), "{actions:?}");
    }
}
