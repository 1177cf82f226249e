//! Giving the sockets back to a plain php-fpm (decision 22): the way of a take-over in the other direction.
//!
//! The php-fpm that shall go on is started with our own listening sockets under the texts of its own `listen` lines (P1), so it
//! binds nothing and both accept on the same sockets. Only then do our masters finish and the supervisor ends. Before that
//! everything can be taken back; each socket file has a second name meanwhile, since a php-fpm that gives up removes the
//! paths of sockets it was handed (P2).

mod inherit;
mod stock;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::events::Event;
use super::fault;
use super::listens;
use super::sockets::Held;
use super::supervisor::{Phase, Supervisor};
use crate::core::passage::{Order, Passage};
use crate::edge::control::replies::ReplySink;
use crate::edge::fpm;
use crate::edge::units::Unit;
use crate::model::endpoint::Endpoint;
use crate::model::listen::Handover;
use crate::model::plan::UpstreamServer;
use crate::model::pool::Pool;
use crate::model::snapshot::JobView;
use crate::model::time::Moment;
use crate::model::wire::{ErrorCode, Progress, Reply};
use crate::sys::listener::{self, Expected, FileId};
pub(super) use inherit::INHERIT;
pub use inherit::inherit;
pub(super) use stock::Started;
use stock::Stock;

/// The second name of a socket of ours while another php-fpm has it. No generation is ever written so, and it is swept like one.
const ASIDE: &str = ".01";

/// The file that names the unit that was taken over.
pub(super) const FORMER: &str = "former.json";

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// NGINX's include names the pools' own paths only.
    Include,
    /// Every socket file gets a second name.
    Guard,
    /// The plain php-fpm starts on our sockets.
    Launch,
    /// Our masters finish, and the supervisor ends.
    Leave,
}

impl Step {
    const ALL: [Self; 4] = [Self::Include, Self::Guard, Self::Launch, Self::Leave];

    const fn word(self) -> &'static str {
        match self {
            Self::Include => "include",
            Self::Guard => "guard",
            Self::Launch => "launch",
            Self::Leave => "leave",
        }
    }
}

/// A hand-back on its way.
#[derive(Debug)]
pub(super) struct Handback {
    replies: Option<ReplySink>,
    began: Moment,
    stage: Stage,
    passage: Passage<Step>,
    stock: Rc<Stock>,
    sockets: Vec<Given>,
    started: Option<Rc<Started>>,
}

/// One socket that is given back.
#[derive(Debug, Clone)]
struct Given {
    /// The text by which php-fpm knows it.
    key: String,
    held: Held,
    file: Option<(PathBuf, FileId)>,
}

#[derive(Debug)]
enum Stage {
    Next,
    Working,
    Ended(Result<(), String>),
}

impl Supervisor {
    /// Begins to give the sockets back.
    pub(super) fn handback(&mut self, wish: (&[String], Option<&str>), dry_run: super::takeover::Earnest, replies: ReplySink) {
        if self.phase == Phase::Booting {
            replies.refuse(ErrorCode::Busy, "the supervisor is still starting");
            return;
        }
        if let Some(job) = self.job_view() {
            replies.finish(super::calls::busy(&job));
            return;
        }
        let former = self.former_unit();
        let stock = match Stock::of(wish, former, (&self.settings, &self.children)) {
            Ok(stock) => Rc::new(stock),
            Err(why) => {
                replies.refuse(ErrorCode::Usage, why);
                return;
            }
        };
        let sockets = self.given();
        if sockets.is_empty() {
            replies.refuse(ErrorCode::Failed, "no pool of this instance runs, so there is nothing to give back");
            return;
        }
        let passage = Passage::new(Step::ALL.to_vec(), Step::Leave);
        let (began, replies) = (self.now(), Some(replies));
        self.handback = Some(Handback { replies, began, stage: Stage::Next, passage, stock, sockets, started: None });
        self.snapshot_dirty = true;
        if dry_run == super::takeover::Earnest::Tell {
            for step in Step::ALL {
                self.tell_handback(&format!("{}: {}", step.word(), self.handback_words(step)));
            }
            self.end_handback(Reply::Done { message: "nothing was changed".to_owned(), shards: Vec::new() });
        }
    }

    /// Writes down which unit was taken over: a hand-back starts it again.
    pub(super) fn remember_unit(&self, unit: Option<&Unit>) {
        let path = self.settings.runtime_directory.join(FORMER);
        let written = match unit {
            Some(unit) => super::state::write(&path, &unit.name()).map_err(|error| super::chain(&error)),
            None => {
                drop(std::fs::remove_file(&path));
                Ok(())
            }
        };
        if let Err(error) = written {
            tracing::warn!(error, "unit that was taken over was not written down");
        }
    }

    fn former_unit(&self) -> Option<String> {
        super::state::read(&self.settings.runtime_directory.join(FORMER)).ok().flatten()
    }

    /// Gives the sockets at the pools' own places, each with the text of its `listen` as php-fpm compares it.
    fn given(&self) -> Vec<Given> {
        let prefix = fpm::prefix(&self.settings.php, &self.draft.build);
        let (mut own, _) = listens::resolve_all(&self.draft.files, &prefix);
        let mut given = Vec::new();
        for pool in &self.draft.files.pools {
            let Some(listen) = own.remove(&pool.name) else { continue };
            let mut all = self.held.values().flatten();
            let Some(held) = all.find(|held| held.plan.endpoint == listen.endpoint && self.sockets.is_public(held)) else { continue };
            let file = held.plan.endpoint.path().map(Path::to_path_buf).zip(held.listener.file_id());
            given.push(Given { key: key_of(pool, &listen.endpoint, &prefix), held: held.clone(), file });
        }
        given
    }

    /// Carries the hand-back on as far as it goes without waiting.
    pub(super) fn advance_handback(&mut self) {
        while let Some(order) = self.next_handback_order() {
            let stage = match order {
                Order::Do(step) => {
                    let words = self.handback_words(step);
                    tracing::info!(step = step.word(), "hand-back step");
                    self.tell_handback(&format!("{}: {words}", step.word()));
                    self.hand(step)
                }
                Order::Undo(step) => {
                    tracing::info!(step = step.word(), undo = true, "hand-back step");
                    self.tell_handback(&format!("{}: taken back", step.word()));
                    self.unhand(step)
                }
                Order::Done | Order::Undone => {
                    self.handback_over();
                    return;
                }
            };
            if let Some(handback) = &mut self.handback {
                handback.stage = stage;
            }
        }
    }

    fn next_handback_order(&mut self) -> Option<Order<Step>> {
        let handback = self.handback.as_mut()?;
        // One hand at the include at a time.
        if self.nginx.is_under_way() {
            return None;
        }
        match std::mem::replace(&mut handback.stage, Stage::Next) {
            Stage::Next => {}
            Stage::Working => {
                handback.stage = Stage::Working;
                return None;
            }
            Stage::Ended(result) => {
                if let Err(why) = &result {
                    tracing::error!(why, "step of the hand-back failed");
                }
                let order = handback.passage.order();
                handback.passage.ended(result);
                if let Order::Do(step) = order {
                    fault::point(step.word());
                }
            }
        }
        Some(handback.passage.order())
    }

    fn hand(&mut self, step: Step) -> Stage {
        let Some(handback) = &self.handback else { return Stage::Next };
        match step {
            Step::Include => {
                let work = super::nginx::lead_where(self.children.clone(), self.draft_of_own_paths(), self.drained.clone());
                self.hand_work(async move { work.await.map(|()| None) })
            }
            Step::Guard => Stage::Ended(guard(&handback.sockets)),
            Step::Launch => {
                let names = handback.sockets.iter().map(|given| (given.key.clone(), Arc::clone(&given.held.listener.fd))).collect();
                let inodes = handback.sockets.iter().map(|given| given.held.listener.inode).collect();
                let launch = stock::Launch {
                    children: self.children.clone(),
                    stock: Rc::clone(&handback.stock),
                    names,
                    inodes,
                    directory: self.settings.runtime_directory.clone(),
                    patience: self.settings.restart.ready_timeout,
                };
                self.hand_work(async move { launch.run().await.map(Some) })
            }
            Step::Leave => {
                self.leave_to_stock();
                Stage::Ended(Ok(()))
            }
        }
    }

    fn unhand(&mut self, step: Step) -> Stage {
        let Some(handback) = &self.handback else { return Stage::Next };
        match step {
            Step::Include => {
                let work = super::nginx::lead_where(self.children.clone(), (*self.draft).clone(), self.drained.clone());
                self.hand_work(async move { work.await.map(|()| None) })
            }
            Step::Guard => Stage::Ended(unguard(&handback.sockets)),
            Step::Launch => {
                let started = handback.started.clone();
                let (stock, inodes) =
                    (Rc::clone(&handback.stock), handback.sockets.iter().map(|given| given.held.listener.inode).collect());
                self.hand_work(async move { stock::dismiss(started, &stock, inodes).await.map(|()| None) })
            }
            Step::Leave => Stage::Ended(Ok(())),
        }
    }

    fn hand_work(&self, task: impl Future<Output = Result<Option<Started>, String>> + 'static) -> Stage {
        let events = self.events.clone();
        drop(tokio::task::spawn_local(async move {
            let result = task.await;
            super::tell(&events, Event::Handed(result)).await;
        }));
        Stage::Working
    }

    /// Hears that a task of the hand-back has ended.
    pub(super) fn handed(&mut self, result: Result<Option<Started>, String>) {
        let Some(handback) = self.handback.as_mut().filter(|handback| matches!(handback.stage, Stage::Working)) else { return };
        handback.stage = Stage::Ended(result.map(|started| {
            if let Some(started) = started {
                handback.started = Some(Rc::new(started));
            }
        }));
    }

    /// The other php-fpm serves: our masters leave its sockets to it and finish.
    fn leave_to_stock(&mut self) {
        let Some(handback) = &self.handback else { return };
        let sockets = handback.sockets.clone();
        if let Err(error) = unguard(&sockets) {
            tracing::warn!(error, "second name of a socket was not removed");
        }
        for given in &sockets {
            if let Endpoint::Tcp(address) = given.held.plan.endpoint
                && let Err(error) = self.sockets.point(address, &[(None, given.held.clone())])
            {
                tracing::error!(error = %super::chain(&error), "connections were not steered to the other php-fpm");
            }
            self.sockets.share_theirs(&given.held.plan.endpoint, &given.held.listener);
        }
    }

    /// Everything is done, or everything is undone.
    fn handback_over(&mut self) {
        let Some(handback) = &self.handback else { return };
        let pid = handback.started.as_ref().map(|started| started.pid()).unwrap_or_default();
        let Some(failure) = handback.passage.failure() else {
            tracing::info!(pid, "hand-back done");
            let message = format!("php-fpm master {pid} serves; polyfpm's masters finish what they have, and the supervisor ends");
            self.end_handback(Reply::Done { message, shards: Vec::new() });
            self.stop();
            drop(tokio::task::spawn_local(stock::end_own_unit(self.children.clone())));
            return;
        };
        let remarks = handback.passage.remarks().iter().map(|remark| format!("not taken back: {remark}"));
        let causes = std::iter::once(failure.to_owned()).chain(remarks).collect();
        let hint = Some("everything was put back and polyfpm serves as before".to_owned());
        let message = format!("hand back to {}", handback.stock.words());
        self.end_handback(Reply::Error { code: ErrorCode::Failed, message, causes, hint, job: None, shards: Vec::new() });
    }

    fn end_handback(&mut self, reply: Reply) {
        self.snapshot_dirty = true;
        if let Some(replies) = self.handback.take().and_then(|handback| handback.replies) {
            replies.finish(reply);
        }
    }

    /// The supervisor is told to stop while it gives back: whoever was started goes with it.
    pub(super) fn abandon_handback(&mut self) {
        let Some(handback) = &self.handback else { return };
        if let Err(error) = unguard(&handback.sockets) {
            tracing::warn!(error, "second name of a socket was not removed");
        }
        if let Some(started) = &handback.started {
            started.kill();
        }
        self.end_handback(super::calls::error(ErrorCode::Stopping, "the supervisor is stopping"));
    }

    /// Gives the hand-back as the job under way.
    pub(super) fn handback_view(&self) -> Option<JobView> {
        let passage = &self.handback.as_ref()?.passage;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (done, total) = passage.progress();
        let step = match passage.order() {
            Order::Do(step) => step.word().to_owned(),
            Order::Undo(step) => format!("taking back: {}", step.word()),
            Order::Done | Order::Undone => "ending".to_owned(),
        };
        Some(JobView { job: 0, verb: "handback".to_owned(), done: count(done), total: count(total), step })
    }

    fn tell_handback(&self, words: &str) {
        let Some(handback) = &self.handback else { return };
        if let (Some(replies), Some(job)) = (&handback.replies, self.handback_view()) {
            let at_ms = u64::try_from((self.now() - handback.began).as_millis()).unwrap_or(u64::MAX);
            replies.progress(Progress { job, shard: None, generation: None, step: words.to_owned(), at_ms });
        }
    }

    fn handback_words(&self, step: Step) -> String {
        let Some(handback) = &self.handback else { return String::new() };
        let count = handback.sockets.len();
        match step {
            Step::Include => "lead every upstream of NGINX's include to the pool's own path, and wait until NGINX uses no other".to_owned(),
            Step::Guard => format!("give each of {count} sockets a second name, in case their paths are removed"),
            Step::Launch => format!("start {} on these sockets; from then on both answer", handback.stock.words()),
            Step::Leave => "let polyfpm's masters finish what they have, and end: from here on nothing is taken back".to_owned(),
        }
    }

    /// Gives the draft with every upstream leading to its pool's own place, with no connections kept there.
    fn draft_of_own_paths(&self) -> super::draft::Draft {
        let mut draft = (*self.draft).clone();
        let own: BTreeMap<_, _> = self.given().into_iter().map(|given| (given.held.plan.pool.clone(), given.held.plan.endpoint)).collect();
        for pool in &mut draft.plan.pools {
            let Some(endpoint) = own.get(&pool.pool).cloned() else { continue };
            let shards = pool.servers.iter().flat_map(|server| server.shards.iter().cloned()).collect();
            pool.servers = vec![UpstreamServer { endpoint, workers: pool.workers.max_children, shards }];
        }
        for shard in &mut draft.plan.shards {
            shard.placements.iter_mut().for_each(|placement| placement.listener.handover = Handover::Share);
        }
        draft
    }
}

/// Gives the text by which php-fpm compares an inherited socket with a pool's `listen` (P1, P8).
fn key_of(pool: &Pool, endpoint: &Endpoint, prefix: &Path) -> String {
    match endpoint {
        Endpoint::Tcp(address) => format!("{}:{}", address.ip(), address.port()),
        // As it is written: links are not resolved for the comparison.
        Endpoint::Unix(_) if pool.listen.starts_with('/') => pool.listen.clone(),
        Endpoint::Unix(_) => pool.prefix.as_deref().unwrap_or(prefix).join(&pool.listen).display().to_string(),
    }
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ASIDE);
    name.into()
}

fn guard(sockets: &[Given]) -> Result<(), String> {
    let files = sockets.iter().filter_map(|given| given.file.as_ref());
    for (path, file) in files {
        // The name is free or leads there already.
        listener::lend(path, *file, &aside(path), Expected::Ours(*file)).map_err(|error| super::chain(&error))?;
    }
    Ok(())
}

/// Gives back paths that were removed, and removes the second names.
fn unguard(sockets: &[Given]) -> Result<(), String> {
    let mut result = Ok(());
    for (path, file) in sockets.iter().filter_map(|given| given.file.as_ref()) {
        if listener::file_id(path).is_ok_and(|standing| standing.is_none()) {
            let back = listener::lend(&aside(path), *file, path, Expected::Free);
            result = result.and(back.map_err(|error| super::chain(&error)));
        }
        let removed = listener::unpublish(&aside(path), *file);
        result = result.and(removed.map(drop).map_err(|error| error.to_string()));
    }
    result
}

/// A descriptor with the text that names it.
type Named = (String, Arc<OwnedFd>);
