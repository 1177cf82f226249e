//! What people and scripts ask for: the control socket's commands and the signals (`docs/operations.md`).

use std::collections::BTreeSet;
use std::time::Duration;

use super::fault;
use super::supervisor::{Phase, Supervisor};
use super::takeover::Earnest;
use super::telling::told;
use crate::core::fleet::{Busy, JobFailure, JobKind, JobOrder, NginxStep};
use crate::core::shard::{Input, Shard, Stage};
use crate::edge::control::replies::ReplySink;
use crate::edge::control::server::Call;
use crate::model::ids::{MasterId, PoolName, ShardId};
use crate::model::snapshot::JobView;
use crate::model::wire::{Command, ErrorCode, Progress, Reply, Selection, ShardRuns};

/// The caller that follows the job under way.
#[derive(Debug)]
pub(super) struct ActiveCall {
    pub(super) replies: Option<ReplySink>,
    pub(super) what: Followed,
}

/// What a caller follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// A job of the fleet.
    Job(u64),
    /// The reading that precedes an apply.
    Reading,
}

/// What has to be done when the job under way has ended: signals cannot be refused, so they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// Read everything again (SIGHUP).
    Reload,
    /// A rolling restart (SIGUSR2).
    Restart,
    /// A reload, then a rolling restart: the one does not contain the other.
    ReloadThenRestart,
}

impl Pending {
    /// Adds a wish to those that wait already.
    #[must_use]
    pub(super) const fn and(self, wish: Self) -> Self {
        match (self, wish) {
            (Self::Nothing, other) | (other, Self::Nothing) => other,
            (Self::Reload, Self::Reload) => Self::Reload,
            (Self::Restart, Self::Restart) => Self::Restart,
            (Self::ReloadThenRestart | Self::Reload | Self::Restart, _) => Self::ReloadThenRestart,
        }
    }
}

/// The end of a job.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) job: u64,
    pub(super) kind: JobKind,
    pub(super) failure: Option<JobFailure>,
    pub(super) shards: Vec<ShardRuns>,
    pub(super) took: Duration,
}

impl Supervisor {
    /// Carries out a command that came over the control socket.
    pub(super) fn call(&mut self, call: Call) {
        let Call { command, peer, replies, connection } = call;
        tracing::info!(command = command.word(), uid = peer.uid, pid = peer.pid.unwrap_or_default(), "command received");
        if self.phase == Phase::Stopping && command != Command::Stop {
            replies.finish(error(ErrorCode::Stopping, "the supervisor is stopping"));
            return;
        }
        match command {
            Command::Status { .. } => replies.finish(Reply::Status(Box::new(self.picture()))),
            Command::Restart { selection } => self.restart(&selection, Some(replies)),
            Command::Preview => self.preview(replies),
            Command::Reload => {
                self.barred.clear();
                self.reload(Some(replies));
            }
            Command::Park { shard } => self.one_shard(JobKind::Park, shard, NginxStep::None, replies),
            Command::Drain { shard } => self.one_shard(JobKind::Drain, shard, NginxStep::First, replies),
            Command::Unpark { shard } => {
                let nginx = if self.drained.contains(&shard) { NginxStep::Last } else { NginxStep::None };
                self.one_shard(JobKind::Unpark, shard, nginx, replies);
            }
            Command::Stop => {
                self.stops.push(replies);
                self.stop();
            }
            Command::Reopen => {
                let count = self.reopen_logs();
                replies.finish(Reply::Done { message: format!("{count} masters were told to reopen their logs"), shards: Vec::new() });
            }
            Command::Takeover { from, dry_run } => {
                self.takeover(from, if dry_run { Earnest::Tell } else { Earnest::Do }, replies);
            }
            Command::Handback { argv, to, dry_run } => {
                self.handback((&argv, to.as_deref()), if dry_run { Earnest::Tell } else { Earnest::Do }, replies);
            }
            Command::Upgrade => self.begin_upgrade(replies, connection),
        }
    }

    /// Begins a rolling restart. `replies` is absent when a signal asked for it.
    pub(super) fn restart(&mut self, selection: &Selection, replies: Option<ReplySink>) {
        if let Some(job) = self.job_view() {
            self.refuse_or_keep(&job, replies, Pending::Restart);
            return;
        }
        match self.select(selection) {
            Ok(shards) => {
                let order = JobOrder { kind: JobKind::Restart, shards, together: Vec::new(), retire: Vec::new(), nginx: NginxStep::None };
                self.begin(order, replies);
            }
            Err(message) => reply(replies, error(ErrorCode::Usage, &message)),
        }
    }

    /// Reads everything again; what differs is handed over when the reading is done.
    pub(super) fn reload(&mut self, replies: Option<ReplySink>) {
        if let Some(job) = self.job_view() {
            self.refuse_or_keep(&job, replies, Pending::Reload);
            return;
        }
        self.call = Some(ActiveCall { replies, what: Followed::Reading });
        self.begin_reading();
    }

    fn refuse_or_keep(&mut self, job: &JobView, replies: Option<ReplySink>, wish: Pending) {
        match replies {
            Some(replies) => replies.finish(busy(job)),
            None => self.pending = self.pending.and(wish),
        }
    }

    fn one_shard(&mut self, kind: JobKind, shard: ShardId, nginx: NginxStep, replies: ReplySink) {
        if let Some(job) = self.job_view() {
            replies.finish(busy(&job));
            return;
        }
        if self.draft.plan.shard(&shard).is_none_or(|plan| plan.placements.is_empty()) {
            replies.finish(error(ErrorCode::Usage, &format!("there is no shard {shard} with pools: see polyfpm status")));
            return;
        }
        match kind {
            JobKind::Drain => drop(self.drained.insert(shard.clone())),
            JobKind::Unpark => drop(self.drained.remove(&shard)),
            JobKind::Restart | JobKind::Apply | JobKind::Park | JobKind::Heal => {}
        }
        self.begin(JobOrder { kind, shards: vec![shard], together: Vec::new(), retire: Vec::new(), nginx }, Some(replies));
    }

    /// Begins a job and remembers who follows it.
    pub(super) fn begin(&mut self, mut order: JobOrder, replies: Option<ReplySink>) {
        order.together = self.together(&order);
        let verb = order.kind.word();
        let read_just_now = order.kind == JobKind::Apply;
        match self.fleet.begin(order, self.now()) {
            Ok((number, actions)) => {
                if !read_just_now {
                    self.ask_for_kept(number);
                }
                tracing::info!(job = number, verb, "job began");
                self.snapshot_dirty = true;
                self.call = Some(ActiveCall { replies, what: Followed::Job(number) });
                self.carry_out(actions);
            }
            Err(Busy(job)) => reply(replies, busy(&job)),
        }
    }

    /// Gives the shards a selection means, in order.
    fn select(&self, selection: &Selection) -> Result<Vec<ShardId>, String> {
        let running: Vec<&crate::model::plan::ShardPlan> =
            self.draft.plan.shards.iter().filter(|shard| !shard.placements.is_empty()).collect();
        let mut chosen: BTreeSet<ShardId> = BTreeSet::new();
        for target in &selection.targets {
            let before = chosen.len();
            let matches = running.iter().filter(|shard| shard.id.to_string() == *target || shard.id.group.as_str() == target);
            chosen.extend(matches.map(|shard| shard.id.clone()));
            if chosen.len() == before && !chosen.iter().any(|id| id.to_string() == *target) {
                return Err(format!("'{target}' names no group or shard that runs: see polyfpm status"));
            }
        }
        if selection.targets.is_empty() {
            chosen.extend(running.iter().map(|shard| shard.id.clone()));
        }
        if let Some(pool) = &selection.pool {
            if self.draft.plan.pool(pool).is_none() {
                return Err(format!("there is no pool '{pool}' that runs: see polyfpm status"));
            }
            chosen.retain(|id| self.carries(id, pool));
        }
        if chosen.is_empty() {
            return Err("no shard that runs is meant".to_owned());
        }
        Ok(chosen.into_iter().collect())
    }

    fn carries(&self, id: &ShardId, pool: &PoolName) -> bool {
        self.draft.plan.shard(id).is_some_and(|shard| shard.placements.iter().any(|placement| placement.pool == *pool))
    }

    /// Gives the job under way, the reading before an apply included.
    pub(super) fn job_view(&self) -> Option<JobView> {
        let reading = || {
            self.tasks.is_reading().then(|| JobView {
                job: 0,
                verb: "reload".to_owned(),
                done: 0,
                total: 0,
                step: "reading settings and pool files".to_owned(),
            })
        };
        self.fleet.job().or_else(reading).or_else(|| self.takeover_view()).or_else(|| self.handback_view()).or_else(|| self.upgrade_view())
    }

    /// Passes a step of the job to whoever follows it.
    pub(super) fn tell_progress(&mut self, step: Progress) {
        self.tell_takeover_progress(&step);
        if let Some(ActiveCall { replies: Some(replies), what: Followed::Job(number) }) = &self.call
            && *number == step.job.job
        {
            replies.progress(step);
        }
    }

    /// Tells the end of a job to whoever follows it.
    pub(super) fn job_finished(&mut self, ended: Ended) {
        fault::point("job done");
        self.snapshot_dirty = true;
        let Ended { job, kind, failure, shards, took } = ended;
        self.takeover_applied(failure.as_ref());
        let (verb, took_ms) = (kind.word(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        // What a later supervisor has to know of it is part of the job.
        self.write_state();
        let answer = match failure {
            None if !self.unwritten.is_empty() => {
                tracing::error!(job, verb, took_ms, "job done and not written down");
                self.not_written_down(shards)
            }
            None => {
                tracing::info!(job, verb, took_ms, "job done");
                Reply::Done { message: done_message(&kind, &shards, self.draft.plan.quarantined.len()), shards }
            }
            Some(failure) => {
                let whose = failure.shard.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::error!(job, verb, took_ms, shard = whose, why = failure.why, "job failed");
                let about_nginx = failure.shard.is_none() && self.nginx.failure().is_some();
                let hint = about_nginx.then(|| "the shards run as read; mend the cause and run polyfpm reload".to_owned());
                failed(&failure, shards, hint)
            }
        };
        if matches!(&self.call, Some(ActiveCall { what: Followed::Job(number), .. }) if *number == job)
            && let Some(call) = self.call.take()
        {
            reply(call.replies, answer);
        }
        self.fleet.forget_gone();
        self.sockets.end_gathering();
        if kind == JobKind::Apply {
            self.tell_reloaded();
        }
    }

    fn not_written_down(&self, shards: Vec<ShardRuns>) -> Reply {
        Reply::Error {
            code: ErrorCode::Failed,
            message: "what was done runs, and was not written down for a later supervisor".to_owned(),
            causes: self.unwritten.values().cloned().collect(),
            hint: Some("make the directory writable, with room, and run the command again".to_owned()),
            job: None,
            shards,
        }
    }

    /// Does what signals asked for while a job was under way.
    pub(super) fn take_up_pending(&mut self) {
        if self.job_view().is_some() || self.phase != Phase::Running {
            return;
        }
        match std::mem::take(&mut self.pending) {
            Pending::Nothing => {}
            Pending::Reload => self.reload(None),
            Pending::Restart => self.restart(&Selection::default(), None),
            Pending::ReloadThenRestart => {
                self.reload(None);
                self.pending = Pending::Restart;
            }
        }
    }

    /// Ends every master, each within the drain time-out.
    pub(super) fn stop(&mut self) {
        if self.phase == Phase::Stopping {
            return;
        }
        tracing::info!("stopping");
        self.phase = Phase::Stopping;
        self.pending = Pending::Nothing;
        self.abandon_takeover();
        self.abandon_handback();
        self.abandon_upgrade();
        told(self.service.stopping());
        let actions = self.fleet.stop(self.now());
        self.carry_out(actions);
    }

    /// Tells every master to reopen its logs (SIGUSR1); gives how many were told. One that is not ready has no handler for
    /// the signal yet and would be ended by it: it is told when it is.
    pub(super) fn reopen_logs(&mut self) -> usize {
        let living: Vec<MasterId> = self.masters.values().filter(|master| master.alive).map(|master| master.id.clone()).collect();
        living.iter().filter(|id| self.reopen_log(id)).count()
    }

    fn reopen_log(&mut self, id: &MasterId) -> bool {
        let birth = self.fleet.shard(&id.shard).and_then(Shard::birth).filter(|birth| birth.generation == id.generation);
        let ready = birth.is_none_or(|birth| !matches!(birth.stage, Stage::Launching | Stage::AwaitingReady));
        let Some(master) = self.masters.get_mut(id) else { return false };
        master.reopen_when_ready = !ready;
        !ready || master.signal(&self.children, nix::sys::signal::Signal::SIGUSR1).is_ok()
    }

    /// Hears that a master is ready.
    pub(super) fn master_ready(&mut self, id: &MasterId) {
        self.feed_master(id, Input::Ready { generation: id.generation });
        if self.masters.get(id).is_some_and(|master| master.reopen_when_ready) {
            self.reopen_log(id);
        }
    }

    /// Feeds an input to a master's shard.
    pub(super) fn feed_master(&mut self, id: &MasterId, input: Input) {
        self.feed(&id.shard.clone(), input);
    }
}

fn reply(replies: Option<ReplySink>, answer: Reply) {
    if let Some(replies) = replies {
        replies.finish(answer);
    }
}

fn done_message(kind: &JobKind, shards: &[ShardRuns], kept_out: usize) -> String {
    let count = shards.iter().filter(|runs| runs.outcome == "changed").count();
    let shards = if count == 1 { "1 shard".to_owned() } else { format!("{count} shards") };
    match kind {
        JobKind::Restart | JobKind::Heal => format!("{shards} restarted"),
        JobKind::Apply => {
            let changed = if count == 0 { "nothing differs".to_owned() } else { format!("{shards} changed") };
            changed + &bad_pools(kept_out)
        }
        JobKind::Park => "parked".to_owned(),
        JobKind::Drain => "drained".to_owned(),
        JobKind::Unpark => "serving".to_owned(),
    }
}

/// Gives what a reload that is done has to say of pools it did not take in as they are written.
fn bad_pools(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "; 1 pool is not as its files say: see polyfpm status".to_owned(),
        _ => format!("; {count} pools are not as their files say: see polyfpm status"),
    }
}

fn failed(failure: &JobFailure, shards: Vec<ShardRuns>, hint: Option<String>) -> Reply {
    let message = match (&failure.shard, failure.generation) {
        (Some(shard), Some(generation)) => format!("start {shard}#{generation}"),
        (Some(shard), None) => format!("change {shard}"),
        (None, _) => failure.why.clone(),
    };
    let causes = if failure.shard.is_some() { vec![failure.why.clone()] } else { Vec::new() };
    let serves = shards.iter().any(|runs| failure.shard.as_ref() == Some(&runs.shard) && runs.generation.is_some());
    let hint = hint.or_else(|| {
        let state = if serves { "the old master still serves" } else { "no master serves this shard" };
        failure.shard.is_some().then(|| format!("{state}; mend the cause and run the command again"))
    });
    Reply::Error { code: ErrorCode::Failed, message, causes, hint, job: None, shards }
}

pub(super) fn error(code: ErrorCode, message: &str) -> Reply {
    Reply::Error { code, message: message.to_owned(), causes: Vec::new(), hint: None, job: None, shards: Vec::new() }
}

pub(super) fn busy(job: &JobView) -> Reply {
    Reply::Error {
        code: ErrorCode::Busy,
        message: format!("a {} is under way: {} of {} shards done, {}", job.verb, job.done, job.total, job.step),
        causes: Vec::new(),
        hint: Some("wait for it to end, then try again".to_owned()),
        job: Some(job.clone()),
        shards: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_tells_of_the_pools_it_did_not_take_in() {
        for (kept_out, message) in [
            (0, "nothing differs"),
            (1, "nothing differs; 1 pool is not as its files say: see polyfpm status"),
            (2, "nothing differs; 2 pools are not as their files say: see polyfpm status"),
        ] {
            assert_eq!(done_message(&JobKind::Apply, &[], kept_out), message);
        }
    }

    #[test]
    fn no_wish_is_lost_to_another() {
        use Pending::{Nothing, Reload, ReloadThenRestart, Restart};
        for (wishes, kept) in [
            (vec![], Nothing),
            (vec![Reload], Reload),
            (vec![Restart, Restart], Restart),
            (vec![Reload, Restart], ReloadThenRestart),
            (vec![Restart, Reload], ReloadThenRestart),
            (vec![Restart, Reload, Restart, Reload], ReloadThenRestart),
        ] {
            assert_eq!(wishes.iter().fold(Nothing, |pending, wish| pending.and(*wish)), kept, "{wishes:?}");
        }
    }
}
