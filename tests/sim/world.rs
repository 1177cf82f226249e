//! The world around the fleet: masters that live and die, answers that come late, twice or never, and the clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use polyfpm::core::fleet::{Fleet, FleetAction};
use polyfpm::core::shard::{Blueprint, Input, Left, Signal, Sockets, Stage, Target, Wanted};
use polyfpm::model::ids::{GroupName, MasterId, ShardId};
use polyfpm::model::time::Moment;

use crate::job::JobSeen;
use crate::knobs::Knobs;
use crate::random::Random;
use crate::rare::Rare;
use crate::site::{BAD, Life, Master, Quality, Site};

/// Says which promise was broken.
pub(crate) type Fault = String;

/// How many inputs are remembered so that one of them may be told again.
const REMEMBERED: usize = 24;

/// What happens in the world, apart from time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The start of a master comes to its end.
    LaunchEnds(MasterId),
    /// The sockets of a master take their paths, or cannot.
    SwitchEnds(MasterId),
    /// A master process ends; its workers may go on.
    Dies { master: MasterId, orphans: bool },
    /// The workers of a dead master end.
    WorkersEnd(MasterId),
    /// A report arrives.
    Report(ShardId, Input),
    /// NGINX is up to date, or will not be.
    NginxEnds,
}

/// Everything there is in one run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) dice: Random,
    pub(crate) knobs: Knobs,
    pub(crate) now: Moment,
    pub(crate) fleet: Fleet,
    pub(crate) ids: Vec<ShardId>,
    pub(crate) sites: BTreeMap<ShardId, Site>,
    pub(crate) masters: BTreeMap<MasterId, Master>,
    pub(crate) events: BTreeMap<(Moment, u64), Event>,
    pub(crate) job: Option<JobSeen>,
    pub(crate) jobs: u64,
    pub(crate) stopping: bool,
    /// The shard that the supervisor itself starts in the present call.
    pub(crate) starting: Option<ShardId>,
    /// Shards that are wanted up again, with what they were before.
    pub(crate) risen: Vec<(ShardId, Wanted)>,
    /// Masters are good, signals are heard and nobody interferes.
    pub(crate) fair: bool,
    pub(crate) seen: BTreeSet<Rare>,
    remembered: VecDeque<(ShardId, Input)>,
    scheduled: u64,
    trace: Option<Vec<String>>,
}

impl World {
    /// Makes the world of a seed.
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = Random::new(seed);
        let knobs = Knobs::throw(&mut dice);
        let group = GroupName::new("g");
        let ids: Vec<ShardId> = (1..=knobs.shards).map(|index| ShardId::new(&group, index)).collect();
        Self {
            fleet: Fleet::new(knobs.timing, knobs.settle),
            sites: ids.iter().map(|id| (id.clone(), Site::new())).collect(),
            now: Moment::START,
            masters: BTreeMap::new(),
            events: BTreeMap::new(),
            job: None,
            jobs: 0,
            stopping: false,
            starting: None,
            risen: Vec::new(),
            fair: false,
            seen: BTreeSet::new(),
            remembered: VecDeque::new(),
            scheduled: 0,
            trace: traced.then(Vec::new),
            dice,
            knobs,
            ids,
        }
    }

    /// Writes a line of the trace, when there is one.
    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.trace {
            lines.push(format!("{:>12.3}  {}", self.now.since_start().as_secs_f64(), shorter(&line())));
        }
    }

    /// Gives the trace.
    pub(crate) fn into_trace(self) -> Vec<String> {
        self.trace.unwrap_or_default()
    }

    pub(crate) fn site(&mut self, id: &ShardId) -> Result<&mut Site, Fault> {
        self.sites.get_mut(id).ok_or_else(|| format!("{id} is no shard of this world"))
    }

    pub(crate) fn master(&mut self, id: &MasterId) -> Result<&mut Master, Fault> {
        self.masters.get_mut(id).ok_or_else(|| format!("{id} was never launched or is discarded"))
    }

    /// Lets something happen after at most `longest`.
    fn soon(&mut self, longest: Duration, event: Event) {
        let at = self.now.after(self.dice.delay(longest));
        self.at(at, event);
    }

    fn at(&mut self, at: Moment, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// How long an answer may take: in a fair world always less than the time-outs.
    fn answer_time(&mut self, usual_ms: u64) -> Duration {
        let slow = !self.fair && self.dice.chance(self.knobs.slow);
        Duration::from_millis(if slow { 60_000 } else { usual_ms })
    }

    /// Whether something that can go wrong does.
    fn unlucky(&mut self, per_mille: u64) -> bool {
        !self.fair && self.dice.chance(per_mille)
    }

    // --- time -------------------------------------------------------------------------------------------------------------

    /// Lets the next thing happen: an event or a deadline.
    pub(crate) fn pass(&mut self) -> Result<Passed, Fault> {
        let event = self.events.keys().next().copied();
        let deadline = self.fleet.deadline();
        let late = !self.fair && self.dice.chance(100);
        match (event, deadline) {
            (None, None) => return Ok(Passed::NothingLeft),
            (Some(key), due) if late || due.is_none_or(|due| key.0 <= due) => {
                self.now = self.now.max(key.0);
                if let Some(event) = self.events.remove(&key) {
                    self.happen(event)?;
                }
            }
            (_, Some(due)) => {
                self.now = self.now.max(due);
                self.time()?;
            }
            (Some(_), None) => {}
        }
        Ok(Passed::Something)
    }

    /// Calls the fleet at its deadline and checks that it made progress.
    pub(crate) fn time(&mut self) -> Result<(), Fault> {
        self.trace(|| "time".to_owned());
        // Time-outs of zero may follow each other at once; others never.
        let timing = self.knobs.timing;
        let mut calls = if timing.drain_timeout.is_zero() || timing.backoff.is_zero() { 16 } else { 1 };
        loop {
            let actions = self.fleet.on_time(self.now);
            self.carry_out(actions)?;
            calls -= 1;
            match self.fleet.deadline() {
                Some(due) if due <= self.now && calls == 0 => {
                    return Err(format!("the deadline {due:?} is not after on_time at {:?}", self.now));
                }
                Some(due) if due <= self.now => {}
                _ => return self.turn_is_not_overdue(),
            }
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::LaunchEnds(master) => {
                let actions = self.launch_ends(&master)?;
                self.carry_out(actions)
            }
            Event::SwitchEnds(master) => {
                let actions = self.switch_ends(&master)?;
                self.carry_out(actions)
            }
            Event::Dies { master, orphans } => {
                self.dies(&master, orphans);
                Ok(())
            }
            Event::WorkersEnd(master) => {
                self.workers_end(&master);
                Ok(())
            }
            Event::Report(id, input) => self.tell(&id, input),
            Event::NginxEnds => self.nginx_ends(),
        }
    }

    // --- what masters do --------------------------------------------------------------------------------------------------

    /// Takes the machine's wish for a new master.
    pub(crate) fn launch(&mut self, id: &MasterId, sockets: Sockets, blueprint: Blueprint) -> Result<Vec<FleetAction>, Fault> {
        let site = self.site(&id.shard)?;
        let rare = if blueprint == Blueprint::LastGood { Some(Rare::LastGood) } else { None };
        let (version, quality) = match (blueprint, site.good) {
            (Blueprint::LastGood, Some(good)) => (good, Quality::Good),
            (Blueprint::LastGood | Blueprint::Current, _) => (site.version, site.quality),
        };
        let master = Master::new(sockets, version, quality);
        self.masters.insert(id.clone(), master);
        self.seen.extend(rare);
        self.launch_begins(id)
    }

    fn launch_begins(&mut self, id: &MasterId) -> Result<Vec<FleetAction>, Fault> {
        if self.knobs.synchronous {
            return self.launch_ends(id);
        }
        let time = self.answer_time(200);
        self.soon(time, Event::LaunchEnds(id.clone()));
        Ok(Vec::new())
    }

    /// Looks at the sockets of a shard whose paths are lent.
    pub(crate) fn lent(&mut self, id: &ShardId) -> Result<Vec<FleetAction>, Fault> {
        let left = match (self.unlucky(self.knobs.stranded), self.unlucky(300)) {
            (true, _) => Left::Stranded,
            (false, true) => Left::Served,
            (false, false) => Left::Nothing,
        };
        self.site(id)?.stranded |= left == Left::Stranded;
        self.feed(id, Input::Lent { left })
    }

    /// Takes the machine's wish for a rescue master.
    pub(crate) fn rescue(&mut self, id: &MasterId) -> Result<Vec<FleetAction>, Fault> {
        let site = self.site(&id.shard)?;
        let (version, quality) = (site.version, if site.good.is_some() { Quality::Good } else { site.quality });
        // Nobody depends on it for anything new: it may be told to leave whenever it is quiet.
        let master = Master { rescue: true, released: true, ..Master::new(Sockets::Held, version, quality) };
        self.masters.insert(id.clone(), master);
        self.launch_begins(id)
    }

    fn launch_ends(&mut self, id: &MasterId) -> Result<Vec<FleetAction>, Fault> {
        let unlucky = self.unlucky(self.knobs.launch_failure);
        let (mute, dies) = (self.unlucky(self.knobs.launch_failure), self.unlucky(self.knobs.launch_failure));
        let generation = id.generation;
        let Some(master) = self.masters.get_mut(id).filter(|master| master.life == Life::Launching) else { return Ok(Vec::new()) };
        let quality = master.quality;
        if unlucky || quality == Quality::NoLaunch {
            master.life = Life::Stillborn;
            return self.feed(&id.shard, Input::LaunchFailed { generation, why: "no process".to_owned() });
        }
        master.life = Life::Alive;
        if master.released && !master.rescue {
            self.seen.insert(Rare::LateLaunch);
        }
        let pid = u32::try_from(generation.0 + 100).unwrap_or(u32::MAX);
        let actions = self.feed(&id.shard, Input::Launched { generation, pid })?;
        if dies || quality == Quality::Dies {
            self.soon(Duration::from_secs(1), Event::Dies { master: id.clone(), orphans: false });
        } else if !mute && quality != Quality::Mute {
            let time = self.answer_time(900);
            self.soon(time, Event::Report(id.shard.clone(), Input::Ready { generation }));
        }
        Ok(actions)
    }

    /// Takes the machine's wish for a proof.
    pub(crate) fn prove(&mut self, id: &MasterId) -> Result<(), Fault> {
        let (fails, hangs) = (self.unlucky(self.knobs.proof_failure), self.unlucky(self.knobs.proof_failure));
        let generation = id.generation;
        let quality = self.master(id)?.quality;
        if hangs || quality == Quality::Hangs {
            return Ok(());
        }
        let input = if fails || quality == Quality::Unproven {
            Input::NotProven { generation, why: "no pong".to_owned() }
        } else {
            Input::Proven { generation }
        };
        let time = self.answer_time(400);
        self.soon(time, Event::Report(id.shard.clone(), input));
        Ok(())
    }

    /// Takes the machine's wish for the paths.
    pub(crate) fn switch(&mut self, id: &MasterId) -> Result<Vec<FleetAction>, Fault> {
        if self.knobs.synchronous {
            return self.switch_ends(id);
        }
        let time = self.answer_time(100);
        self.soon(time, Event::SwitchEnds(id.clone()));
        Ok(Vec::new())
    }

    /// The paths move and the machine hears of it in the same breath, or they do not move: a switch is a few renames that
    /// the loop itself makes, so a birth that was given up meanwhile is not switched any more.
    fn switch_ends(&mut self, id: &MasterId) -> Result<Vec<FleetAction>, Fault> {
        let birth = self.fleet.shard(&id.shard).and_then(|shard| shard.birth());
        if birth.is_none_or(|birth| birth.generation != id.generation || birth.stage != Stage::Switching) {
            return Ok(Vec::new());
        }
        let generation = id.generation;
        if self.unlucky(self.knobs.switch_failure) {
            return self.feed(&id.shard, Input::SwitchFailed { generation, why: "no rename".to_owned() });
        }
        self.feed(&id.shard, Input::Switched { generation })
    }

    /// The paths of several move in one breath, all or none.
    pub(crate) fn switch_together(&mut self, ids: &[MasterId]) -> Result<Vec<FleetAction>, Fault> {
        let unlucky = self.unlucky(self.knobs.switch_failure);
        let mut follow = Vec::new();
        for id in ids {
            let generation = id.generation;
            let input =
                if unlucky { Input::SwitchFailed { generation, why: "no rename".to_owned() } } else { Input::Switched { generation } };
            follow.extend(self.feed(&id.shard, input)?);
        }
        Ok(follow)
    }

    /// A master process ends, and somebody reports it.
    pub(crate) fn dies(&mut self, id: &MasterId, orphans: bool) {
        let delay = self.dice.delay(Duration::from_secs(if self.fair { 1 } else { 20 }));
        let at = self.now.after(delay);
        let Some(master) = self.masters.get_mut(id).filter(|master| master.life == Life::Alive) else { return };
        master.death_report = at;
        master.life = Life::Orphaned;
        self.trace(|| format!("  {id} dies{}", if orphans { ", its workers go on" } else { "" }));
        self.at(at, Event::Report(id.shard.clone(), Input::Died { generation: id.generation, why: "it died".to_owned() }));
        if !orphans {
            self.workers_end(id);
        }
    }

    /// The last workers of a dead master end, and somebody reports it: mostly after the death.
    pub(crate) fn workers_end(&mut self, id: &MasterId) {
        let delay = self.dice.delay(Duration::from_secs(if self.fair { 1 } else { 20 }));
        let ordered = self.knobs.ordered;
        let now = self.now;
        let Some(master) = self.masters.get_mut(id).filter(|master| master.life == Life::Orphaned) else { return };
        master.life = Life::Gone;
        let at = if ordered { now.max(master.death_report).after(delay) } else { now.after(delay) };
        self.trace(|| format!("  {id} is gone"));
        self.at(at, Event::Report(id.shard.clone(), Input::Gone { generation: id.generation }));
    }

    /// A signal reaches whom it reaches.
    pub(crate) fn signal(&mut self, id: &MasterId, signal: Signal, to: Target) -> Result<(), Fault> {
        let deaf = signal != Signal::Kill && self.unlucky(self.knobs.deaf);
        let orphans = signal != Signal::Kill && self.unlucky(50);
        let longest = match signal {
            Signal::Quit => self.answer_time(3_000),
            Signal::Term | Signal::Kill => self.answer_time(500),
        };
        let life = self.master(id)?.life;
        if deaf {
            return Ok(());
        }
        match (life, to) {
            (Life::Alive, _) => self.soon(longest, Event::Dies { master: id.clone(), orphans }),
            (Life::Orphaned, Target::Group) => self.soon(longest, Event::WorkersEnd(id.clone())),
            (Life::Orphaned | Life::Launching | Life::Stillborn | Life::Gone, _) => {}
        }
        // A master that dies of a group's signal takes its workers along, but not one that died before the signal came.
        if to == Target::Group && life == Life::Alive {
            self.soon(longest, Event::WorkersEnd(id.clone()));
        }
        Ok(())
    }

    /// Somebody looks for quiet from now on.
    pub(crate) fn watch_quiet(&mut self, id: &MasterId) {
        let generation = id.generation;
        if self.unlucky(self.knobs.detained) {
            self.soon(Duration::from_secs(2), Event::Report(id.shard.clone(), Input::Detained { generation }));
        }
        if self.unlucky(self.knobs.never_quiet) {
            return;
        }
        let time = self.answer_time(4_000);
        self.soon(time, Event::Report(id.shard.clone(), Input::Quiet { generation }));
    }

    /// NGINX will be done some time.
    pub(crate) fn nginx(&mut self) {
        let time = self.answer_time(2_000);
        self.soon(time, Event::NginxEnds);
    }

    // --- telling ----------------------------------------------------------------------------------------------------------

    /// Tells a shard something and carries out what follows.
    pub(crate) fn tell(&mut self, id: &ShardId, input: Input) -> Result<(), Fault> {
        let actions = self.feed(id, input)?;
        self.carry_out(actions)
    }

    /// Tells a shard something; gives what it wants done.
    fn feed(&mut self, id: &ShardId, input: Input) -> Result<Vec<FleetAction>, Fault> {
        self.trace(|| format!("{id} <- {input:?}"));
        if self.remembered.len() >= REMEMBERED {
            self.remembered.pop_front();
        }
        // A loan is answered in the same breath, and never again.
        if !matches!(input, Input::Lent { .. }) {
            self.remembered.push_back((id.clone(), input.clone()));
        }
        self.learn(id, &input)?;
        let actions = self.fleet.handle(id, input, self.now);
        self.intents()?;
        Ok(actions)
    }

    /// Tells something again that was told before.
    pub(crate) fn tell_again(&mut self) -> Result<(), Fault> {
        let at = self.dice.index(self.remembered.len());
        let Some((id, input)) = self.remembered.get(at).cloned() else { return Ok(()) };
        self.trace(|| "again:".to_owned());
        self.tell(&id, input)
    }

    /// The operator, or a control panel, changes what a shard runs.
    pub(crate) fn change_blueprint(&mut self) -> Result<(), Fault> {
        let at = self.dice.index(self.ids.len());
        let Some(id) = self.ids.get(at).cloned() else { return Ok(()) };
        let bad = self.dice.chance(self.knobs.bad_blueprint);
        let quality = if bad { self.dice.pick(&BAD).unwrap_or(Quality::Dies) } else { Quality::Good };
        self.set_blueprint(&id, quality)
    }

    pub(crate) fn set_blueprint(&mut self, id: &ShardId, quality: Quality) -> Result<(), Fault> {
        let site = self.site(id)?;
        site.version += 1;
        site.quality = quality;
        site.suspect = false;
        self.trace(|| format!("{id} has a new configuration: {quality:?}"));
        self.fleet.blueprint_changed(id);
        Ok(())
    }
}

/// Whether anything was left to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Yes.
    Something,
    /// No event, no deadline.
    NothingLeft,
}

/// Writes names as people do: what `Debug` makes of them hides everything else.
fn shorter(line: &str) -> String {
    let line = line.replace("MasterId { shard: ", "").replace("ShardId { group: GroupName(\"g\"), index: ", "g/");
    line.replace(" }, generation: Generation(", "#").replace(") }", "").replace("JobView ", "").replace(" }", "")
}
