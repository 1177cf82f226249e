//! The promises about one shard, held against every action.

use std::collections::VecDeque;
use std::time::Duration;

use polyfpm::core::fleet::FleetAction;
use polyfpm::core::shard::{Action, Blueprint, Input, Note, Quieting, Signal, Slot, Sockets, Target, Wanted};
use polyfpm::model::ids::{MasterId, ShardId};

use crate::rare::Rare;
use crate::site::Life;
use crate::world::{Fault, World};

/// Gives a fault where a promise does not hold.
pub(crate) fn promise(holds: bool, fault: impl FnOnce() -> Fault) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault()) }
}

impl World {
    /// Learns from a report what the machine can know from now on.
    pub(crate) fn learn(&mut self, id: &ShardId, input: &Input) -> Result<(), Fault> {
        let generation = match input {
            Input::Launched { generation, .. }
            | Input::LaunchFailed { generation, .. }
            | Input::Ready { generation }
            | Input::Proven { generation }
            | Input::NotProven { generation, .. }
            | Input::Switched { generation }
            | Input::SwitchFailed { generation, .. }
            | Input::Died { generation, .. }
            | Input::Quiet { generation }
            | Input::Detained { generation }
            | Input::Gone { generation } => *generation,
            Input::Start
            | Input::Roll
            | Input::RollTogether
            | Input::GoOn
            | Input::CallOff { .. }
            | Input::Heal
            | Input::Park
            | Input::Retire
            | Input::Lent { .. }
            | Input::Time => return Ok(()),
        };
        let Some(master) = self.masters.get_mut(&MasterId::new(id, generation)) else { return Ok(()) };
        let told = &mut master.told;
        match input {
            Input::Launched { .. } => told.launched = true,
            Input::LaunchFailed { .. } => told.launch_failed = true,
            Input::Ready { .. } => told.ready = true,
            Input::Proven { .. } => told.proven = true,
            Input::Switched { .. } => told.switched = true,
            Input::Quiet { .. } => told.quiet = true,
            Input::Detained { .. } => told.detained = true,
            Input::Died { .. } | Input::Gone { .. } => {
                let news = !told.died;
                if news && matches!(input, Input::Gone { .. }) {
                    self.seen.insert(Rare::GoneBeforeDeath);
                }
                told.died = true;
                told.gone |= matches!(input, Input::Gone { .. });
                if news {
                    self.learn_of_death(id, generation)?;
                }
            }
            Input::NotProven { .. } | Input::SwitchFailed { .. } => {}
            Input::Start | Input::Roll | Input::RollTogether | Input::GoOn | Input::CallOff { .. } => {}
            Input::Heal | Input::Park | Input::Retire | Input::Lent { .. } | Input::Time => {}
        }
        Ok(())
    }

    fn learn_of_death(&mut self, id: &ShardId, generation: polyfpm::model::ids::Generation) -> Result<(), Fault> {
        let (timing, now) = (self.knobs.timing, self.now);
        let site = self.sites.get_mut(id).ok_or_else(|| format!("{id} is no shard of this world"))?;
        let Some((serving, since)) = site.serving.filter(|(serving, _)| *serving == generation) else { return Ok(()) };
        debug_assert_eq!(serving, generation);
        site.serving = None;
        if now - since >= timing.stable_after {
            if site.failures > 0 {
                self.seen.insert(Rare::StableDeath);
            }
            site.failures = 0;
        }
        if site.coming.is_some() {
            self.seen.insert(Rare::DeathDuringHandover);
            return Ok(());
        }
        if site.failures == 0 {
            site.failures = 1;
            site.not_before = now;
        } else {
            site.count_failure(&timing, now);
        }
        Ok(())
    }

    /// Learns which shards are meant to be down by now, and that somebody did ask for it.
    pub(crate) fn intents(&mut self) -> Result<(), Fault> {
        let mut risen = Vec::new();
        for id in &self.ids {
            let going = self.job_takes_down(id) || self.stopping;
            let Some(site) = self.sites.get_mut(id) else { continue };
            let Some(shard) = self.fleet.shard(id) else {
                site.forget();
                continue;
            };
            let from = std::mem::replace(&mut site.wanted, shard.wanted());
            if from != Wanted::Up && shard.wanted() == Wanted::Up {
                risen.push((id.clone(), from));
            }
            match shard.wanted() {
                Wanted::Up => {
                    site.may_park &= going;
                    site.may_retire &= going;
                    continue;
                }
                Wanted::Parked => promise(site.may_park, || format!("{id} is parked and nobody asked for it"))?,
                Wanted::Retired => promise(site.may_retire, || format!("{id} is retired and nobody asked for it"))?,
            }
            if site.serving.is_some() && site.coming.is_some() {
                self.seen.insert(Rare::StopDuringHandover);
            }
            site.serving = None;
            site.coming = None;
            site.failures = 0;
            site.halted = false;
            for (_, master) in self.masters.iter_mut().filter(|(master, _)| master.shard == *id) {
                master.released = true;
            }
        }
        self.risen.extend(risen);
        Ok(())
    }

    /// Carries out what the fleet wants, each wish checked, and then the picture as a whole.
    pub(crate) fn carry_out(&mut self, actions: Vec<FleetAction>) -> Result<(), Fault> {
        self.intents()?;
        let mut queue: VecDeque<FleetAction> = actions.into();
        while let Some(action) = queue.pop_front() {
            self.trace(|| format!("  -> {action:?}"));
            let follow = match action {
                FleetAction::Shard(action) => self.take(action)?,
                FleetAction::SwitchTogether { masters } => {
                    self.gate_opens(&masters)?;
                    self.switch_together(&masters)?
                }
                FleetAction::Nginx => {
                    self.nginx_asked()?;
                    Vec::new()
                }
                FleetAction::Progress { shard, step, .. } => {
                    self.progressed(shard, step)?;
                    Vec::new()
                }
                FleetAction::Finished { job, kind, failure, shards, .. } => {
                    self.finished(job, &kind, failure.as_ref(), &shards)?;
                    Vec::new()
                }
            };
            queue.extend(follow);
        }
        if let Some(job) = &mut self.job {
            job.fresh = false;
            job.begun = false;
        }
        self.picture()
    }

    fn take(&mut self, action: Action) -> Result<Vec<FleetAction>, Fault> {
        match action {
            Action::Launch { master, sockets, blueprint } => {
                self.launch_is_right(&master, sockets, blueprint)?;
                return self.launch(&master, sockets, blueprint);
            }
            Action::Switch { master } => {
                self.switch_is_right(&master)?;
                return self.switch(&master);
            }
            Action::Prove { master } => {
                let coming = self.site(&master.shard)?.coming;
                let record = self.master(&master)?;
                record.proofs += 1;
                let right = coming == Some(master.generation) && record.told.ready && record.proofs == 1;
                promise(right, || format!("{master} is proven out of turn"))?;
                self.prove(&master)?;
            }
            Action::WatchQuiet { master, why } => {
                self.quieting_is_right(&master, why)?;
                self.watch_quiet(&master);
            }
            Action::Signal { master, signal, to } => {
                self.signal_is_right(&master, signal, to)?;
                self.signal(&master, signal, to)?;
            }
            Action::Discard { master } => self.discard(&master)?,
            Action::Lend { shard } => {
                let site = self.site(&shard)?;
                site.lent = true;
                promise(site.serving.is_none(), || format!("{shard} serves and its paths are lent"))?;
                return self.lent(&shard);
            }
            Action::Rescue { master } => {
                self.rescue_is_right(&master)?;
                return self.rescue(&master);
            }
            Action::TakeBack { shard } => {
                let site = self.site(&shard)?;
                promise(site.lent, || format!("{shard} takes back what was not lent"))?;
                site.lent = false;
            }
            Action::CloseHeld { shard } => {
                let site = self.site(&shard)?;
                promise(site.halted && site.lent, || format!("{shard} closes its listeners and is not halted"))?;
                self.seen.insert(Rare::Closed);
                let rescued = self
                    .masters
                    .iter()
                    .any(|(id, master)| id.shard == shard && master.rescue && !master.told.gone && !master.told.launch_failed);
                promise(!rescued, || format!("{shard} closes its listeners and somebody serves what waits there"))?;
            }
            Action::Note { master, note } => self.noted(&master, &note)?,
        }
        Ok(Vec::new())
    }

    fn launch_is_right(&mut self, id: &MasterId, sockets: Sockets, blueprint: Blueprint) -> Result<(), Fault> {
        if let Some(at) = self.risen.iter().position(|(risen, _)| *risen == id.shard) {
            let (_, from) = self.risen.swap_remove(at);
            if from == Wanted::Retired {
                self.seen.insert(Rare::CameBack);
            }
            promise(self.may_rise(&id.shard, from), || format!("{id} is launched, and the shard was {from:?}"))?;
        }
        promise(!self.stopping, || format!("{id} is launched while the supervisor stops"))?;
        let asked = self.job.as_ref().is_some_and(|job| job.begins(&id.shard)) || self.is_starting(&id.shard);
        let heals = self.job.as_ref().is_some_and(|job| job.heals(&id.shard));
        let wanted = self.fleet.shard(&id.shard).map(polyfpm::core::shard::Shard::wanted);
        let now = self.now;
        let budget = self.knobs.timing.give_up_after;
        let site = self.site(&id.shard)?;
        promise(id.generation > site.last, || format!("{id} uses a number again"))?;
        promise(site.coming.is_none(), || format!("{id} is launched while another birth is on its way"))?;
        promise(wanted == Some(Wanted::Up), || format!("{id} is launched and {wanted:?} is wanted"))?;
        let serves = site.serving.is_some();
        // A hung master's successor accepts what waits at the sockets of the one that does not.
        let right = serves == (sockets != Sockets::Held) || (serves && heals);
        promise(right, || format!("{id} is launched on {sockets:?}, another serves: {serves}"))?;
        if asked && !serves {
            if site.halted {
                site.failures = 0;
            }
            site.halted = false;
            site.suspect = false;
        }
        if !asked && !serves {
            promise(!site.halted, || format!("{id} is launched though the shard is halted"))?;
            promise(now >= site.not_before, || format!("{id} is launched {:?} too early", site.not_before - now))?;
            promise(site.failures == 0 || site.failures <= budget, || format!("{id} is launched after {} failures", site.failures))?;
        }
        let older = site.good.is_some_and(|good| good != site.version);
        let expected = if site.suspect && older && sockets == Sockets::Held { Blueprint::LastGood } else { Blueprint::Current };
        promise(blueprint == expected, || format!("{id} is launched with {blueprint:?}, {expected:?} is right"))?;
        site.last = id.generation;
        site.coming = Some(id.generation);
        site.started = true;
        if serves { self.roll_is_right(&id.shard, sockets) } else { Ok(()) }
    }

    fn rescue_is_right(&mut self, id: &MasterId) -> Result<(), Fault> {
        self.seen.insert(Rare::Rescue);
        let wanted = self.fleet.shard(&id.shard).map(polyfpm::core::shard::Shard::wanted);
        let already = self.masters.iter().any(|(other, master)| other.shard == id.shard && master.rescue);
        let site = self.site(&id.shard)?;
        promise(id.generation > site.last, || format!("{id} uses a number again"))?;
        let nobody = site.serving.is_none() && site.coming.is_none();
        promise(site.lent && nobody && site.stranded, || format!("{id} shall rescue what nobody lost"))?;
        promise(wanted != Some(Wanted::Retired), || format!("{id} is launched and {wanted:?} is wanted"))?;
        site.stranded = false;
        site.last = id.generation;
        promise(!already, || format!("{id} shall rescue what another one does"))
    }

    fn switch_is_right(&mut self, id: &MasterId) -> Result<(), Fault> {
        let coming = self.site(&id.shard)?.coming;
        let record = self.master(id)?;
        let right = coming == Some(id.generation) && record.told.proven && !record.told.died && record.sockets == Sockets::New;
        promise(right, || format!("{id} switches out of turn"))
    }

    fn quieting_is_right(&mut self, id: &MasterId, why: Quieting) -> Result<(), Fault> {
        let now = self.now;
        let wanted = self.fleet.shard(&id.shard).map(polyfpm::core::shard::Shard::wanted);
        let serving = self.site(&id.shard)?.serving;
        let record = self.master(id)?;
        promise(record.released, || format!("{id} is the only one that serves and shall fall quiet"))?;
        promise((record.served || record.rescue) && !record.told.gone, || format!("{id} has nothing to fall quiet from"))?;
        promise(record.watched.is_none(), || format!("{id} shall fall quiet twice"))?;
        record.watched = Some(now);
        let rescue = record.rescue;
        if record.told.died && why == Quieting::Replaced {
            self.seen.insert(Rare::OrphansReleased);
        }
        let right = match why {
            Quieting::Replaced => rescue || serving.is_some_and(|(serving, _)| serving > id.generation),
            Quieting::Parked => wanted == Some(Wanted::Parked),
            Quieting::Retired => wanted == Some(Wanted::Retired),
        };
        promise(right, || format!("{id} shall fall quiet because of {why:?}, which is not so"))
    }

    fn signal_is_right(&mut self, id: &MasterId, signal: Signal, to: Target) -> Result<(), Fault> {
        let (now, drain) = (self.now, self.knobs.timing.drain_timeout);
        let coming = self.site(&id.shard)?.coming;
        let record = self.master(id)?;
        promise(record.told.launched && !record.told.launch_failed, || format!("{id} is signalled and was never seen to run"))?;
        promise(!record.told.gone, || format!("{id} is signalled and is gone"))?;
        promise(to == Target::Group || !record.told.died, || format!("the master of {id} is signalled and is dead"))?;
        promise(to == Target::Master || record.told.died || signal == Signal::Kill, || {
            format!("the group of {id} gets {signal:?} though its master could pass it on")
        })?;
        promise(coming != Some(id.generation), || format!("{id} is on its way in and is signalled"))?;
        if !record.served && !record.rescue {
            return Ok(());
        }
        // One that was given up before it ran is killed at once.
        if record.rescue && record.watched.is_none() {
            return Ok(());
        }
        promise(record.released, || format!("{id} is the only one that serves and is signalled"))?;
        let waited = |since: Option<polyfpm::model::time::Moment>, span: Duration| since.is_some_and(|since| now - since >= span);
        match signal {
            Signal::Quit => {
                let right = record.told.quiet || waited(record.watched, drain);
                record.quit = record.quit.or(Some(now));
                promise(right, || format!("{id} is told to quit before it is quiet"))
            }
            Signal::Term => promise(waited(record.quit, drain), || format!("{id} is told to stop before its time to finish is over")),
            Signal::Kill => {
                promise(waited(record.quit, drain), || format!("{id} is killed before its time to finish is over"))?;
                self.seen.insert(Rare::Killed);
                Ok(())
            }
        }
    }

    fn discard(&mut self, id: &MasterId) -> Result<(), Fault> {
        let record = self.masters.remove(id).ok_or_else(|| format!("{id} is discarded twice"))?;
        let right = (record.told.gone && record.life == Life::Gone) || (record.told.launch_failed && record.life == Life::Stillborn);
        promise(right, || format!("{id} is discarded and is {:?}", record.life))
    }

    fn noted(&mut self, id: &MasterId, note: &Note) -> Result<(), Fault> {
        match note {
            Note::Serving => self.serves(id),
            Note::Failed(_) => {
                self.trouble(&id.shard);
                self.failed(id)
            }
            Note::CalledOff(_) => {
                self.seen.insert(Rare::CalledOff);
                let right = self.job.as_ref().is_some_and(crate::job::JobSeen::has_failed);
                promise(right, || format!("{id} is called off and nothing failed"))?;
                self.master(id)?.released = true;
                let now = self.now;
                let site = self.site(&id.shard)?;
                promise(site.coming == Some(id.generation), || format!("{id} is called off out of turn"))?;
                site.coming = None;
                if site.serving.is_none() {
                    // The old master died while its successor was on its way: the next one starts at once.
                    site.not_before = now;
                }
                Ok(())
            }
            Note::Halted(_) => {
                self.seen.insert(Rare::Halted);
                let budget = self.knobs.timing.give_up_after;
                let site = self.site(&id.shard)?;
                site.halted = true;
                promise(site.failures >= budget, || format!("{} is halted after {} failures", id.shard, site.failures))
            }
            Note::Pausing => {
                let budget = self.knobs.timing.give_up_after;
                let site = self.site(&id.shard)?;
                promise(site.failures < budget, || format!("{} goes on after {} failures", id.shard, site.failures))
            }
            Note::Crashed(_) => {
                let right = self.master(id)?.told.died;
                self.trouble(&id.shard);
                promise(right, || format!("{id} is said to have died and lives"))
            }
            Note::Starting
            | Note::Launched
            | Note::Proving
            | Note::Gathered
            | Note::Switching
            | Note::Rescuing
            | Note::Leaving
            | Note::Quitting
            | Note::Hardened(_)
            | Note::Gone
            | Note::Parked => Ok(()),
        }
    }

    fn serves(&mut self, id: &MasterId) -> Result<(), Fault> {
        let (now, stable) = (self.now, self.knobs.timing.stable_after);
        let record = self.master(id)?;
        record.served = true;
        let version = record.version;
        let right = !record.told.died && if record.sockets != Sockets::Held { record.told.switched } else { record.told.proven };
        promise(right, || format!("{id} is said to serve and does not"))?;
        let site = self.site(&id.shard)?;
        promise(site.coming == Some(id.generation), || format!("{id} serves out of turn"))?;
        promise(!site.lent, || format!("{id} serves and its paths are lent"))?;
        if site.serving.is_some_and(|(_, since)| now - since >= stable) {
            site.failures = 0;
        }
        site.coming = None;
        site.stranded = false;
        site.serving = Some((id.generation, now));
        site.good = Some(version);
        site.suspect &= version != site.version;
        let mut outlasted = None;
        for (_, old) in self.masters.iter_mut().filter(|(old, _)| old.shard == id.shard && old.generation < id.generation) {
            old.released = true;
            outlasted = outlasted.or(old.rescue.then_some(Rare::RescueOutlasted));
        }
        self.seen.extend(outlasted);
        Ok(())
    }

    fn failed(&mut self, id: &MasterId) -> Result<(), Fault> {
        let (now, timing) = (self.now, self.knobs.timing);
        let record = self.master(id)?;
        record.released = true;
        let (version, sockets) = (record.version, record.sockets);
        let site = self.site(&id.shard)?;
        promise(site.coming == Some(id.generation), || format!("{id} failed out of turn"))?;
        site.coming = None;
        site.suspect |= version == site.version;
        if site.serving.is_some() {
            self.seen.insert(Rare::FailedHandover);
        } else {
            site.count_failure(&timing, now);
        }
        if sockets != Sockets::Held {
            self.roll_failed();
        }
        Ok(())
    }

    /// Holds the machines' picture against the world's.
    fn picture(&self) -> Result<(), Fault> {
        let mut rolling = 0;
        for (id, site) in &self.sites {
            let Some(shard) = self.fleet.shard(id) else { continue };
            let serving = shard.serving().map(|(generation, _)| generation);
            let expected = site.serving.map(|(generation, _)| generation);
            promise(serving == expected, || format!("{id} believes that {serving:?} serves, {expected:?} does"))?;
            let coming = shard.birth().map(|birth| birth.generation);
            promise(coming == site.coming, || format!("{id} believes that {coming:?} is coming, {:?} is", site.coming))?;
            promise(!(site.lent && serving.is_some()), || format!("{id} serves and its paths are lent"))?;
            promise(shard.is_halted() == site.halted, || format!("{id} is halted: {}, should be: {}", shard.is_halted(), site.halted))?;
            rolling += u32::from(matches!(shard.slot(), Slot::HandingOver { .. }));
            let idle = matches!(shard.slot(), Slot::Empty) && site.started && shard.wanted() == Wanted::Up;
            promise(!idle || site.halted, || format!("{id} is wanted up, is not halted, and nothing happens"))?;
        }
        let at_once = self.job.as_ref().map_or(1, crate::job::JobSeen::at_once);
        promise(rolling <= at_once, || "two shards hand over at once".to_owned())?;
        for (id, master) in &self.masters {
            let Some(shard) = self.fleet.shard(&id.shard) else { return Err(format!("{id} lives and its shard is forgotten")) };
            let serves = shard.serving().is_some_and(|(generation, _)| generation == id.generation);
            let comes = shard.birth().is_some_and(|birth| birth.generation == id.generation);
            let leaves = shard.leaving().iter().find(|leaving| leaving.generation() == id.generation);
            let places = u32::from(serves) + u32::from(comes) + u32::from(leaves.is_some());
            promise(places == 1, || format!("{id} has {places} places"))?;
            let believed = leaves.and_then(polyfpm::core::shard::Leaving::pid).is_some();
            promise(!believed || (master.told.launched && !master.told.died), || format!("{id} is dead and believed alive"))?;
        }
        self.job_picture()
    }
}
