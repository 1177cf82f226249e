//! The promises about the one job.

use std::collections::{BTreeMap, BTreeSet};

use polyfpm::core::fleet::{FleetAction, JobFailure, JobKind, JobOrder, NginxStep, QUIET_PATIENCE};
use polyfpm::core::shard::{Shard, Sockets, Wanted};
use polyfpm::model::ids::{Generation, MasterId, ShardId};
use polyfpm::model::wire::ShardRuns;

use crate::rare::Rare;
use crate::shadow::promise;
use crate::world::{Fault, World};

/// The job under way as the simulation sees it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of one turn")]
pub(crate) struct JobSeen {
    number: u64,
    order: JobOrder,
    /// Whose turns have ended.
    ended: BTreeSet<ShardId>,
    /// Those that are handed over together in the present turn.
    gathering: BTreeSet<ShardId>,
    /// The newest generation of a shard when its turn began.
    newest: BTreeMap<ShardId, Generation>,
    /// The turn began in the present call, whatever happened in it since.
    pub(crate) begun: bool,
    skipped: BTreeSet<ShardId>,
    /// The turn began in the present call.
    pub(crate) fresh: bool,
    roll_failed: bool,
    /// Something happened in the present turn that a job may fail for.
    trouble: bool,
    nginx: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    ToCome,
    UnderWay,
    Over,
}

impl JobSeen {
    fn turn(&self) -> Option<&ShardId> {
        self.order
            .shards
            .iter()
            .find(|id| !self.ended.contains(*id))
            .filter(|_| self.order.nginx != NginxStep::First || self.nginx == Step::Over)
    }

    /// Tells whether it is this shard's turn, alone or with others.
    fn has_turn(&self, id: &ShardId) -> bool {
        self.turn() == Some(id) || self.gathering.contains(id)
    }

    /// Gives all whose turn it is.
    fn turns(&self) -> Vec<ShardId> {
        if self.gathering.is_empty() { self.turn().cloned().into_iter().collect() } else { self.gathering.iter().cloned().collect() }
    }

    /// Gives how many shards may be handed over at once.
    pub(crate) fn at_once(&self) -> u32 {
        u32::try_from(self.gathering.len().max(1)).unwrap_or(u32::MAX)
    }

    /// Tells whether something went wrong in the present turn.
    pub(crate) fn has_failed(&self) -> bool {
        self.trouble
    }

    /// Tells whether this shard's turn began in the present call.
    pub(crate) fn begins(&self, id: &ShardId) -> bool {
        self.fresh && self.turn() == Some(id)
    }

    /// Tells whether this shard's master is replaced because it hangs.
    pub(crate) fn heals(&self, id: &ShardId) -> bool {
        self.order.kind == JobKind::Heal && self.turn() == Some(id)
    }

    fn newest_of(&self, id: &ShardId) -> Generation {
        self.newest.get(id).copied().unwrap_or(Generation(0))
    }

    fn replaces(&self) -> bool {
        matches!(self.order.kind, JobKind::Restart | JobKind::Apply | JobKind::Heal)
    }
}

impl World {
    /// Begins a job, or is refused because one is under way.
    pub(crate) fn begin(&mut self, order: JobOrder) -> Result<(), Fault> {
        self.trace(|| format!("begin {order:?}"));
        for id in &order.retire {
            self.site(id)?.may_retire = true;
        }
        let down = matches!(order.kind, JobKind::Park | JobKind::Drain);
        let busy = self.job.is_some() || self.stopping;
        if down && !busy {
            for id in &order.shards {
                self.site(id)?.may_park = true;
            }
        }
        let last = |id: &ShardId| self.sites.get(id).map_or(Generation(0), |site| site.last);
        let newest = order.shards.first().map(|id| (id.clone(), last(id))).into_iter().collect();
        match self.fleet.begin(order.clone(), self.now) {
            Err(refusal) => {
                self.seen.insert(Rare::Busy);
                promise(busy, || format!("a job was refused for no reason: {refusal}"))
            }
            Ok(_) if busy => Err("a second job began".to_owned()),
            Ok((number, actions)) => {
                promise(number > self.jobs, || format!("job {number} has the number of an older one"))?;
                self.jobs = number;
                let seen = JobSeen {
                    number,
                    order,
                    ended: BTreeSet::new(),
                    gathering: BTreeSet::new(),
                    newest,
                    begun: true,
                    skipped: BTreeSet::new(),
                    fresh: true,
                    roll_failed: false,
                    trouble: false,
                    nginx: Step::ToCome,
                };
                self.job = Some(seen);
                self.carry_out(actions)
            }
        }
    }

    /// A new master beside a serving one is the job's doing, in its shard's turn, and none follows a failure.
    pub(crate) fn roll_is_right(&mut self, id: &ShardId, sockets: Sockets) -> Result<(), Fault> {
        let company = self.company(id);
        let serving = self.sites.get(id).and_then(|site| site.serving).map(|(generation, _)| generation);
        let Some(job) = &mut self.job else { return Err(format!("{id} is rolled without a job")) };
        promise(job.replaces(), || format!("{id} is rolled by a job that replaces nobody"))?;
        if sockets == Sockets::Together {
            job.gathering.insert(id.clone());
            job.newest.extend(serving.map(|generation| (id.clone(), generation)));
            if job.gathering.len() > 1 {
                self.seen.insert(Rare::CameTogether);
            }
            return promise(job.begun && company, || format!("{id} is rolled together with others out of turn"));
        }
        promise(!(job.begun && company && sockets == Sockets::New), || format!("{id} is rolled alone"))?;
        if !job.fresh {
            self.seen.insert(Rare::RolledLate);
        }
        promise(job.turn() == Some(id) && !job.roll_failed, || format!("{id} is rolled out of turn"))
    }

    /// Tells whether this shard and the one whose turn begins are of those that are handed over together, and all of them that
    /// serve are in the job and nothing is on its way to them but what came with this turn.
    fn company(&self, id: &ShardId) -> bool {
        let Some(job) = self.job.as_ref().filter(|job| matches!(job.order.kind, JobKind::Restart | JobKind::Apply)) else { return false };
        let Some(set) = job.turn().and_then(|first| job.order.together.iter().find(|set| set.contains(first))) else { return false };
        let fits = |other: &ShardId| {
            let Some(site) = self.sites.get(other) else { return true };
            let under_way = site.coming.is_some() && other != id && !job.gathering.contains(other);
            let left_out = site.serving.is_some() && (!job.order.shards.contains(other) || job.ended.contains(other));
            !under_way && !left_out
        };
        set.contains(id) && set.iter().all(fits)
    }

    /// Hears that the paths of several masters change hands: of all that came in this turn, and all are proven.
    pub(crate) fn gate_opens(&mut self, masters: &[MasterId]) -> Result<(), Fault> {
        let shards: BTreeSet<ShardId> = masters.iter().map(|id| id.shard.clone()).collect();
        let all = self.job.as_ref().is_some_and(|job| job.gathering == shards);
        promise(all, || format!("the gate opens for {shards:?}, which are not those that came"))?;
        for id in masters {
            let coming = self.site(&id.shard)?.coming;
            if self.site(&id.shard)?.serving.is_none() {
                self.seen.insert(Rare::DeathWhileGathered);
            }
            let record = self.master(id)?;
            let right = coming == Some(id.generation) && record.told.proven && !record.told.died && record.sockets == Sockets::Together;
            promise(right, || format!("{id} switches out of turn"))?;
        }
        Ok(())
    }

    pub(crate) fn roll_failed(&mut self) {
        if let Some(job) = &mut self.job {
            job.roll_failed = true;
        }
    }

    /// Something went wrong with a shard, or somebody interfered with it.
    pub(crate) fn trouble(&mut self, id: &ShardId) {
        if let Some(job) = self.job.as_mut().filter(|job| job.has_turn(id)) {
            job.trouble = true;
            // What follows in the same call is the shard's own doing: with pauses of zero it starts again at once.
            job.fresh = false;
        }
    }

    /// A shard that was down is wanted up again: only for somebody who meant it.
    pub(crate) fn may_rise(&self, id: &ShardId, from: Wanted) -> bool {
        let job = self.job.as_ref().filter(|job| job.begins(id)).map(|job| &job.order.kind);
        let meant = match job {
            Some(JobKind::Unpark) => true,
            Some(JobKind::Apply) => from == Wanted::Retired,
            Some(JobKind::Restart | JobKind::Park | JobKind::Drain | JobKind::Heal) | None => false,
        };
        meant || self.is_starting(id)
    }

    /// Hears that NGINX shall be brought up to date.
    pub(crate) fn nginx_asked(&mut self) -> Result<(), Fault> {
        let job = self.job.as_mut().ok_or("NGINX is asked for without a job")?;
        let right = job.nginx == Step::ToCome && job.order.nginx != NginxStep::None;
        promise(right, || "NGINX is asked for out of turn".to_owned())?;
        job.nginx = Step::UnderWay;
        self.nginx();
        Ok(())
    }

    /// NGINX is done; the loop tells of it only when nothing else of NGINX is under way.
    pub(crate) fn nginx_ends(&mut self) -> Result<(), Fault> {
        self.trace(|| "nginx done".to_owned());
        if let Some(job) = self.job.as_mut().filter(|job| job.nginx == Step::UnderWay) {
            job.nginx = Step::Over;
            job.fresh = job.order.nginx == NginxStep::First;
            job.begun = job.fresh;
        }
        self.remember_newest();
        let actions = self.fleet.nginx_done(self.now);
        self.carry_out(actions)
    }

    fn remember_newest(&mut self) {
        let Some(job) = &mut self.job else { return };
        let Some(id) = job.order.shards.iter().find(|id| !job.ended.contains(*id)).cloned() else { return };
        let last = self.sites.get(&id).map_or(Generation(0), |site| site.last);
        job.newest.insert(id, last);
    }

    /// Follows the job from turn to turn.
    pub(crate) fn progressed(&mut self, shard: Option<ShardId>, step: &str) -> Result<(), Fault> {
        let job = self.job.as_ref().ok_or("progress without a job")?;
        // A shard's first word comes right before its launch.
        let has_turn = |id: &ShardId| job.has_turn(id) || (step == "binding" && job.begun && self.company(id));
        promise(step == "nginx" || shard.as_ref().is_some_and(has_turn), || format!("{step} of {shard:?} is out of turn"))?;
        let Some(id) = shard.filter(|_| matches!(step, "done" | "skipped")) else { return Ok(()) };
        if step == "done" {
            self.turn_ended_well(&id)?;
            self.remember_turn(&id);
        }
        if let Some(job) = &mut self.job {
            job.ended.insert(id.clone());
            if step == "skipped" {
                job.skipped.insert(id);
            }
            if !job.gathering.iter().all(|id| job.ended.contains(id)) {
                return Ok(());
            }
            job.gathering.clear();
            job.fresh = true;
            job.begun = true;
            job.trouble = false;
        }
        self.remember_newest();
        Ok(())
    }

    fn remember_turn(&mut self, id: &ShardId) {
        let mut mine =
            self.masters.iter().filter(|(master, record)| master.shard == *id && record.watched.is_some() && record.quit.is_none());
        let detained = mine.clone().any(|(_, record)| record.told.detained);
        if mine.any(|(_, record)| record.is_quieting()) {
            self.seen.insert(Rare::TurnPastPatience);
        } else if detained {
            self.seen.insert(Rare::TurnPastDetained);
        }
    }

    fn turn_ended_well(&self, id: &ShardId) -> Result<(), Fault> {
        let (Some(job), Some(site)) = (&self.job, self.sites.get(id)) else { return Ok(()) };
        if matches!(job.order.kind, JobKind::Park | JobKind::Drain) {
            promise(site.serving.is_none() && site.coming.is_none(), || format!("{id} is done and not down"))?;
            return promise(!self.quieting(id), || format!("{id} is done and was not told to finish"));
        }
        let (serving, since) = site.serving.ok_or_else(|| format!("{id} is done and does not serve"))?;
        promise(!job.replaces() || serving > job.newest_of(id), || format!("{id} is done and runs {serving}, as before"))?;
        promise(self.now - since >= self.knobs.settle, || format!("{id} is done and has not settled"))?;
        let patient = self.now - since < QUIET_PATIENCE;
        promise(!(patient && self.quieting(id)), || format!("{id} is done and its old master was not told to finish"))
    }

    fn quieting(&self, id: &ShardId) -> bool {
        self.masters.iter().any(|(master, record)| master.shard == *id && record.is_quieting())
    }

    /// A turn ends as soon as it may: called after time has passed for everyone.
    pub(crate) fn turn_is_not_overdue(&self) -> Result<(), Fault> {
        let Some((job, id)) = self.job.as_ref().and_then(|job| Some((job, job.turn()?))) else { return Ok(()) };
        if matches!(job.order.kind, JobKind::Park | JobKind::Drain) {
            let down = self.sites.get(id).is_some_and(|site| site.serving.is_none() && site.coming.is_none());
            let over = down && job.nginx != Step::UnderWay && !self.quieting(id);
            return promise(!over, || format!("the turn of {id} does not end though it is down"));
        }
        let over = job.nginx != Step::UnderWay && job.turns().iter().all(|id| self.has_settled(job, id));
        promise(!over, || format!("the turn of {id} does not end"))
    }

    fn has_settled(&self, job: &JobSeen, id: &ShardId) -> bool {
        let Some(site) = self.sites.get(id) else { return false };
        let Some((serving, since)) = site.serving else { return false };
        let mut enough = self.knobs.settle;
        if self.quieting(id) {
            enough = enough.max(QUIET_PATIENCE);
        }
        site.coming.is_none() && serving > job.newest_of(id) && self.now - since >= enough
    }

    /// A job ends once, and only with what it was for.
    pub(crate) fn finished(
        &mut self,
        number: u64,
        kind: &JobKind,
        failure: Option<&JobFailure>,
        shards: &[ShardRuns],
    ) -> Result<(), Fault> {
        let job = self.job.take().ok_or_else(|| format!("job {number} ends and none is under way"))?;
        promise(job.number == number && job.order.kind == *kind, || format!("job {number} ends, job {} is under way", job.number))?;
        if self.stopping {
            // What its shards run was told before they were sent away.
            self.seen.insert(Rare::StopDuringJob);
            return Ok(());
        }
        promise(shards.len() == job.order.shards.len(), || format!("job {number} does not tell of every shard"))?;
        for runs in shards {
            let serving = self.fleet.shard(&runs.shard).and_then(Shard::serving).map(|(generation, _)| generation);
            promise(runs.generation == serving, || format!("job {number} tells a wrong generation of {}", runs.shard))?;
            let skipped = job.skipped.contains(&runs.shard);
            promise(!skipped || runs.outcome == "untouched", || format!("{} was skipped and is told as {}", runs.shard, runs.outcome))?;
        }
        let nginx = job.order.nginx == NginxStep::None || job.nginx == Step::Over;
        promise(nginx, || format!("job {number} ends without NGINX"))?;
        if let Some(failure) = failure {
            if job.order.nginx == NginxStep::Last {
                self.seen.insert(Rare::NginxAfterFailure);
            }
            let whose = failure.shard.as_ref().is_some_and(|id| job.has_turn(id));
            return promise(whose && job.trouble, || format!("job {number} fails and nothing went wrong: {failure:?}"));
        }
        let all = job.order.shards.iter().all(|id| job.ended.contains(id));
        promise(all, || format!("job {number} ends well after {} of {} turns", job.ended.len(), job.order.shards.len()))?;
        promise(!job.roll_failed, || format!("job {number} ends well though a handover failed"))
    }

    /// The fleet and the simulation agree on whether a job is under way.
    pub(crate) fn job_picture(&self) -> Result<(), Fault> {
        let (believed, seen) = (self.fleet.job().is_some(), self.job.is_some());
        promise(believed == seen, || format!("a job is under way: {seen}, the fleet believes: {believed}"))
    }

    /// Gives the shards that a job is going to take down or let go.
    pub(crate) fn job_takes_down(&self, id: &ShardId) -> bool {
        self.job.as_ref().is_some_and(|job| {
            let down = matches!(job.order.kind, JobKind::Park | JobKind::Drain);
            job.order.retire.contains(id) || (down && job.order.shards.contains(id))
        })
    }

    /// Stops everything.
    pub(crate) fn stop(&mut self) -> Result<(), Fault> {
        self.trace(|| "stop".to_owned());
        self.stopping = true;
        for site in self.sites.values_mut() {
            site.may_retire = true;
        }
        let actions: Vec<FleetAction> = self.fleet.stop(self.now);
        self.carry_out(actions)
    }
}
