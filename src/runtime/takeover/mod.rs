//! Taking over a running php-fpm that is not ours (decision 22).
//!
//! [`Passage`] says which step is next and what is taken back; this module carries the steps out on the loop, where each is a
//! few system calls, a reading with the job that follows it, or a task that reports back. Every step may be done twice: a
//! supervisor that was killed in the middle begins again at the first one.
//!
//! While it lasts, it is the job under way: other commands are refused, and what signals ask for waits.

mod explain;
mod foreign;
mod note;
mod paths;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use nix::sys::signal::Signal;

use super::draft::{DraftResult, Unread};
use super::events::Event;
use super::fault;
use super::supervisor::{Phase, Supervisor};
use crate::core::fleet::JobFailure;
use crate::core::passage::{Order, Passage};
use crate::edge::control::replies::ReplySink;
use crate::model::endpoint::Endpoint;
use crate::model::problem::Problem;
use crate::model::snapshot::JobView;
use crate::model::time::Moment;
use crate::model::wire::{ErrorCode, Progress, Reply, ShardRuns};
use crate::sys::listener::{FileId, Listener};
use foreign::Search;
pub(super) use foreign::{FindError, Foreign, Process, config_of};
use steps::Step;

/// What is wanted of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Earnest {
    /// Do it.
    Do,
    /// Tell it.
    Tell,
}

/// A take-over on its way.
#[derive(Debug)]
pub(super) struct Takeover {
    replies: Option<ReplySink>,
    began: Moment,
    stage: Stage,
    /// Absent while the master is being looked for.
    course: Option<Course>,
}

#[derive(Debug)]
struct Course {
    passage: Passage<Step>,
    foreign: Rc<Foreign>,
    /// What both accept on, or, by rename, what ours do.
    listeners: BTreeMap<Endpoint, Arc<Listener>>,
    /// The files of their sockets.
    files: BTreeMap<PathBuf, FileId>,
    /// Links that lead to their sockets and may go with their unit, with what each says.
    links: Vec<(PathBuf, PathBuf)>,
}

/// What is waited for.
#[derive(Debug)]
enum Stage {
    /// The master is being looked for.
    Finding(Earnest),
    /// The next order is to be carried out.
    Next,
    /// Settings and pool files are being read.
    Reading,
    /// What was read is being brought about.
    Applying,
    /// A task works on the step.
    Working,
    /// The step has ended.
    Ended(Result<(), String>),
}

impl Supervisor {
    /// Begins to look for the master that is meant.
    pub(super) fn takeover(&mut self, from: Option<String>, earnest: Earnest, replies: ReplySink) {
        if self.phase == Phase::Booting {
            self.waiting_takeover = Some((from, earnest, replies));
            return;
        }
        if let Some(job) = self.job_view() {
            replies.finish(super::calls::busy(&job));
            return;
        }
        let search = Search {
            children: self.children.clone(),
            settings: Rc::clone(&self.settings),
            wanted: self.barred.places(),
            pools: self.draft.files.pools.clone(),
            from,
        };
        let events = self.events.clone();
        drop(tokio::task::spawn_local(async move {
            let found = search.run().await;
            super::tell(&events, Event::Found(Box::new(found))).await;
        }));
        self.snapshot_dirty = true;
        self.takeover = Some(Takeover { replies: Some(replies), began: self.now(), stage: Stage::Finding(earnest), course: None });
    }

    /// Takes the end of the search.
    pub(super) fn foreign_found(&mut self, found: Result<Foreign, FindError>) {
        let Some(takeover) = &mut self.takeover else { return };
        let Stage::Finding(earnest) = takeover.stage else { return };
        let foreign = match found {
            Ok(foreign) => Rc::new(foreign),
            Err(error) => {
                let reply = Reply::Error {
                    code: if matches!(error, FindError::Unit(_)) { ErrorCode::Usage } else { ErrorCode::Failed },
                    message: super::chain(&error),
                    causes: Vec::new(),
                    hint: error.hint(),
                    job: None,
                    shards: Vec::new(),
                };
                self.end_takeover(reply);
                return;
            }
        };
        takeover.stage = Stage::Next;
        takeover.course = Some(Course::new(Rc::clone(&foreign)));
        self.tell_takeover(&format!("found {}", foreign.words()));
        for warning in &foreign.warnings {
            tracing::warn!(pid = foreign.process.pid.as_raw(), warning, "take-over warning");
            self.tell_takeover(&format!("warning: {warning}"));
        }
        if earnest == Earnest::Tell {
            for (step, words) in explain::all(&foreign, &self.settings) {
                self.tell_takeover(&format!("{}: {words}", step.word()));
            }
            self.end_takeover(Reply::Done { message: "nothing was changed".to_owned(), shards: Vec::new() });
            return;
        }
        tracing::info!(pid = foreign.process.pid.as_raw(), config = %foreign.config.display(), "take-over began");
    }

    /// Carries the take-over on as far as it goes without waiting.
    pub(super) fn advance_takeover(&mut self) {
        if self.phase == Phase::Running
            && let Some((from, earnest, replies)) = self.waiting_takeover.take_if(|_| self.takeover.is_none())
        {
            if self.job_view().is_some() || self.pending != super::calls::Pending::Nothing {
                self.waiting_takeover = Some((from, earnest, replies));
            } else {
                self.takeover(from, earnest, replies);
            }
        }
        while let Some(order) = self.next_order() {
            let stage = match order {
                Order::Do(step) => {
                    self.tell_step(step, order);
                    self.take(step)
                }
                Order::Undo(step) => {
                    self.tell_step(step, order);
                    self.take_back_step(step)
                }
                Order::Done | Order::Undone => {
                    self.takeover_over();
                    return;
                }
            };
            if let Some(takeover) = &mut self.takeover {
                takeover.stage = stage;
            }
        }
    }

    /// Gives what is to be carried out now, if nothing is waited for.
    fn next_order(&mut self) -> Option<Order<Step>> {
        if !self.may_step() {
            return None;
        }
        let takeover = self.takeover.as_mut()?;
        let course = takeover.course.as_mut()?;
        match std::mem::replace(&mut takeover.stage, Stage::Next) {
            Stage::Next => {}
            Stage::Ended(result) => {
                if let Err(why) = &result {
                    let verb = if course.passage.goes_back() { "undone" } else { "done" };
                    tracing::error!(why, "step of the take-over was not {verb}");
                }
                let step = course.passage.order();
                course.passage.ended(result);
                if let Order::Do(step) = step {
                    fault::point(step.word());
                }
            }
            waiting @ (Stage::Finding(_) | Stage::Reading | Stage::Applying | Stage::Working) => {
                takeover.stage = waiting;
                return None;
            }
        }
        Some(course.passage.order())
    }

    /// Takes a step.
    fn take(&mut self, step: Step) -> Stage {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Stage::Next };
        let foreign = Rc::clone(&course.foreign);
        match step {
            Step::Fetch => Stage::Ended(self.fetch(&foreign).and_then(|()| self.write_note())),
            Step::Start => {
                self.barred.let_in(&foreign.sockets.iter().map(|taken| taken.pool.clone()).collect());
                self.begin_reading();
                Stage::Reading
            }
            Step::Rename => match self.rename() {
                Ok(()) => {
                    let waits = foreign.sockets.iter().map(|taken| self.keepalive_wait(&taken.pool)).max().unwrap_or_default();
                    let inodes = foreign.sockets.iter().map(|taken| taken.inode).collect();
                    self.work(steps::queues_empty(inodes, waits, self.settings.restart.drain_timeout))
                }
                Err(why) => Stage::Ended(Err(why)),
            },
            Step::Disarm => self.work(steps::disarm(foreign)),
            Step::Hold => self.work(steps::hold(foreign)),
            Step::Drain => self.work(steps::drain(foreign, self.settings.restart.drain_timeout)),
            Step::Kill => self.work(steps::kill(foreign)),
            Step::Settle => {
                let (links, paths) = (course.links.clone(), self.restore_vanished());
                self.work(async move { paths.and(steps::settle(foreign, links).await) })
            }
        }
    }

    /// Takes back what there is of a step.
    fn take_back_step(&mut self, step: Step) -> Stage {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Stage::Next };
        let foreign = Rc::clone(&course.foreign);
        match step {
            Step::Fetch => {
                self.put_away();
                self.sockets.leave_theirs();
                self.drop_note();
                // One that was recalled may have been stopped by an earlier supervisor.
                let woken = resume(&foreign);
                self.work(async move { woken.and(steps::rearm(foreign).await) })
            }
            Step::Start => {
                self.bar_again(&foreign);
                self.begin_reading();
                Stage::Reading
            }
            Step::Disarm => self.work(steps::rearm(foreign)),
            Step::Rename => Stage::Ended(self.rename_back()),
            Step::Hold => Stage::Ended(resume(&foreign)),
            // It starts workers again when it goes on.
            Step::Drain | Step::Kill | Step::Settle => Stage::Ended(Ok(())),
        }
    }

    /// Has a task work on the step at hand.
    fn work(&self, task: impl Future<Output = Result<(), String>> + 'static) -> Stage {
        let events = self.events.clone();
        drop(tokio::task::spawn_local(async move {
            let result = task.await;
            super::tell(&events, Event::Passed(result)).await;
        }));
        Stage::Working
    }

    /// Hears that a task has ended.
    pub(super) fn step_passed(&mut self, result: Result<(), String>) {
        if let Some(takeover) = self.takeover.as_mut().filter(|takeover| matches!(takeover.stage, Stage::Working)) {
            takeover.stage = Stage::Ended(result);
        }
    }

    /// Takes a reading that belongs to the take-over; gives it back when it does not.
    pub(super) fn takeover_drafted(&mut self, result: DraftResult) -> Option<DraftResult> {
        let Some(takeover) = self.takeover.as_mut().filter(|takeover| matches!(takeover.stage, Stage::Reading)) else {
            return Some(result);
        };
        match result {
            Ok(draft) => {
                takeover.stage = Stage::Applying;
                let order = self.adopt(draft);
                self.begin(order, None);
            }
            Err(Unread { problems, .. }) => {
                let first = problems.iter().find(|problem| problem.severity == crate::model::problem::Severity::Error);
                let why = first.or(problems.first()).map(ToString::to_string).unwrap_or_default();
                takeover.stage = Stage::Ended(Err(format!("settings or pool files are wrong: {why}")));
            }
        }
        None
    }

    /// Hears that the job of the take-over has ended.
    pub(super) fn takeover_applied(&mut self, failure: Option<&JobFailure>) {
        let Some(takeover) = self.takeover.as_ref().filter(|takeover| matches!(takeover.stage, Stage::Applying)) else { return };
        let Some(course) = &takeover.course else { return };
        let result = match failure {
            Some(failure) => {
                let whose = failure.shard.as_ref().map(|shard| format!("{shard}: ")).unwrap_or_default();
                Err(format!("{whose}{}", failure.why))
            }
            None if course.passage.goes_back() => Ok(()),
            None => self.serves_all(&Rc::clone(&course.foreign)),
        };
        if let Some(takeover) = &mut self.takeover {
            takeover.stage = Stage::Ended(result);
        }
    }

    /// Tells whether the shards of every pool of the master serve.
    fn serves_all(&self, foreign: &Foreign) -> Result<(), String> {
        for taken in &foreign.sockets {
            let all = self.draft.plan.shards.iter();
            let mut shards =
                all.filter(|shard| shard.placements.iter().any(|placement| placement.listener.endpoint == taken.endpoint)).peekable();
            if shards.peek().is_none() {
                let bad = self.draft.plan.quarantined.iter().find(|bad| bad.pool == taken.pool);
                let why = bad.map_or_else(|| "it is not in the plan".to_owned(), |bad| bad.problem.to_string());
                return Err(format!("pool {} cannot run here: {why}", taken.pool));
            }
            if let Some(shard) = shards.find(|shard| self.fleet.shard(&shard.id).is_none_or(|machine| machine.serving().is_none())) {
                return Err(format!("{} does not serve pool {}", shard.id, taken.pool));
            }
        }
        Ok(())
    }

    /// The master has its sockets alone again: its pools stay out as they were.
    fn bar_again(&mut self, foreign: &Foreign) {
        for taken in &foreign.sockets {
            let problem = Problem::error(format!("{} listens on {}", foreign.words(), taken.endpoint));
            self.barred.keep_out(taken.pool.clone(), taken.endpoint.clone(), problem.remedy(super::barred::REMEDY));
        }
    }

    /// Everything is done, or everything is undone.
    fn takeover_over(&mut self) {
        let Some(course) = self.takeover.as_mut().and_then(|takeover| takeover.course.take()) else { return };
        let (words, pid) = (course.foreign.words(), course.foreign.process.pid.as_raw());
        let remarks = course.passage.remarks().to_vec();
        let Some(failure) = course.passage.failure() else {
            let plan = Rc::clone(&self.draft);
            self.sockets.keep_theirs(|endpoint| {
                let mut placements = plan.plan.shards.iter().flat_map(|shard| &shard.placements);
                placements.find(|placement| placement.listener.endpoint == *endpoint).map(|placement| placement.listener.handover)
            });
            self.drop_note();
            self.remember_unit(course.foreign.unit.as_ref());
            tracing::info!(pid, "take-over done");
            let unit = course.foreign.unit.as_ref().map(|unit| format!("; {} is stopped and disabled", unit.name())).unwrap_or_default();
            let left = remarks.iter().map(|remark| format!("; left to do by hand: {remark}")).collect::<String>();
            let count = course.foreign.sockets.len();
            let pools = if count == 1 { "1 pool".to_owned() } else { format!("{count} pools") };
            self.end_takeover(Reply::Done { message: format!("{words} taken over with {pools}{unit}{left}"), shards: self.runs_now() });
            return;
        };
        tracing::error!(pid, why = failure, "take-over undone");
        let causes = std::iter::once(failure.to_owned()).chain(remarks.iter().map(|remark| format!("not taken back: {remark}")));
        let reply = Reply::Error {
            code: ErrorCode::Failed,
            message: format!("take over {words}"),
            causes: causes.collect(),
            hint: Some(
                "everything was put back and the other php-fpm serves as before; mend the cause and run the command again".to_owned(),
            ),
            job: None,
            shards: Vec::new(),
        };
        self.end_takeover(reply);
    }

    fn runs_now(&self) -> Vec<ShardRuns> {
        let shards = self.fleet.shards().filter(|shard| shard.serving().is_some());
        shards
            .map(|shard| ShardRuns {
                shard: shard.id().clone(),
                generation: shard.serving().map(|(generation, _)| generation),
                outcome: "changed".to_owned(),
            })
            .collect()
    }

    fn end_takeover(&mut self, reply: Reply) {
        self.snapshot_dirty = true;
        if let Some(replies) = self.takeover.take().and_then(|takeover| takeover.replies) {
            replies.finish(reply);
        }
    }

    /// The supervisor is told to stop: whatever the other php-fpm needs to go on alone is done at once, where that is still
    /// possible.
    pub(super) fn abandon_takeover(&mut self) {
        if let Some((_, _, replies)) = self.waiting_takeover.take() {
            replies.refuse(ErrorCode::Stopping, "the supervisor is stopping");
        }
        let Some(takeover) = &self.takeover else { return };
        if let Some(course) = &takeover.course {
            let foreign = Rc::clone(&course.foreign);
            if course.passage.is_reversible() {
                let outcomes = [self.rename_back(), resume(&foreign)];
                for why in outcomes.into_iter().filter_map(Result::err) {
                    tracing::error!(why, "take-over was not undone");
                }
                if foreign.unit.is_some() {
                    drop(self.work(steps::rearm(foreign)));
                }
            } else {
                self.sockets.keep_theirs(|_| None);
            }
            self.put_away();
            self.drop_note();
        }
        let why = super::calls::error(ErrorCode::Stopping, "the supervisor is stopping; the other php-fpm serves as before");
        self.end_takeover(why);
    }

    /// Gives the endpoints whose sockets both have.
    pub(super) fn taken_endpoints(&self) -> BTreeSet<Endpoint> {
        let course = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref());
        course.into_iter().flat_map(|course| course.listeners.keys().cloned()).collect()
    }

    /// Gives the take-over as the job under way.
    pub(super) fn takeover_view(&self) -> Option<JobView> {
        let takeover = self.takeover.as_ref()?;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (done, total) = takeover.course.as_ref().map_or((0, 0), |course| course.passage.progress());
        let step = match takeover.course.as_ref().map(|course| course.passage.order()) {
            None => "looking for the master".to_owned(),
            Some(Order::Do(step)) => step.word().to_owned(),
            Some(Order::Undo(step)) => format!("taking back: {}", step.word()),
            Some(Order::Done | Order::Undone) => "ending".to_owned(),
        };
        Some(JobView { job: 0, verb: "takeover".to_owned(), done: count(done), total: count(total), step })
    }

    /// Passes a step of the job that starts our masters on to whoever follows the take-over.
    pub(super) fn tell_takeover_progress(&self, step: &Progress) {
        if let Some(Takeover { replies: Some(replies), stage: Stage::Applying, .. }) = &self.takeover {
            replies.progress(step.clone());
        }
    }

    fn tell_step(&self, step: Step, order: Order<Step>) {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return };
        let words = match order {
            Order::Undo(_) => format!("{}, taken back: {}", step.word(), explain::undo(step)),
            Order::Do(_) | Order::Done | Order::Undone => {
                format!("{}: {}", step.word(), explain::step(step, &course.foreign, &self.settings))
            }
        };
        tracing::info!(pid = course.foreign.process.pid.as_raw(), step = step.word(), undo = course.passage.goes_back(), "take-over step");
        self.tell_takeover(&words);
    }

    fn tell_takeover(&self, words: &str) {
        let Some(takeover) = &self.takeover else { return };
        if let (Some(replies), Some(job)) = (&takeover.replies, self.takeover_view()) {
            let at_ms = u64::try_from((self.now() - takeover.began).as_millis()).unwrap_or(u64::MAX);
            replies.progress(Progress { job, shard: None, generation: None, step: words.to_owned(), at_ms });
        }
    }
}

impl Course {
    fn new(foreign: Rc<Foreign>) -> Self {
        let passage = Passage::new(Step::all(foreign.unit.is_some(), foreign.way), Step::Kill);
        Self { passage, foreign, listeners: BTreeMap::new(), files: BTreeMap::new(), links: Vec::new() }
    }
}

fn resume(foreign: &Foreign) -> Result<(), String> {
    foreign.process.signal(Signal::SIGCONT).map_err(|error| format!("wake process {}: {error}", foreign.process.pid))
}
