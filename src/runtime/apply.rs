//! Bringing what runs in line with what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use super::calls::{ActiveCall, Followed};
use super::draft::{self, Draft, DraftResult, Fault, ReadingInput, Trials, Unread};
use super::events::Event;
use super::quiet::Kept;
use super::supervisor::Supervisor;
use super::telling::told;
use crate::core::fleet::{JobKind, JobOrder, NginxStep};
use crate::core::shard::{Timing, Wanted};
use crate::model::ids::{MasterId, PoolName, ShardId};
use crate::model::plan::Fingerprint;
use crate::model::settings::Settings;
use crate::model::wire::{ErrorCode, Reply};
use crate::sys::watch::Watcher;

/// Whether a reading is under way.
#[derive(Debug, Default)]
pub(super) struct Reading {
    under_way: bool,
}

impl Reading {
    /// Tells whether a reading is under way.
    pub(super) fn is_reading(&self) -> bool {
        self.under_way
    }
}

/// Gives the time-outs of shards from the settings.
pub(super) fn timing(settings: &Settings) -> Timing {
    let restart = &settings.restart;
    let warmup = restart.warmup.iter().map(|warmup| warmup.timeout).sum::<std::time::Duration>();
    Timing {
        ready_timeout: restart.ready_timeout,
        prove_timeout: restart.ready_timeout + warmup,
        drain_timeout: restart.drain_timeout,
        stable_after: restart.stable_after,
        backoff: restart.backoff,
        give_up_after: restart.give_up_after,
    }
}

impl Supervisor {
    /// Begins to read everything again.
    pub(super) fn begin_reading(&mut self) {
        if self.tasks.under_way {
            return;
        }
        self.tasks.under_way = true;
        self.snapshot_dirty = true;
        // Before the first READY there is nothing to reload: the start goes on with what was read.
        if self.phase == super::supervisor::Phase::Running {
            self.reload_told = true;
            told(self.service.reloading());
        }
        let input = self.reading_input();
        let (children, events) = (self.children.clone(), self.events.clone());
        drop(tokio::task::spawn_local(async move {
            let result = draft::read(&children, &input).await;
            super::tell(&events, Event::Drafted(Box::new(result))).await;
        }));
    }

    /// Gives what a reading of everything starts from.
    pub(super) fn reading_input(&self) -> ReadingInput {
        ReadingInput {
            file: self.settings.file.clone(),
            previous: Some(Rc::clone(&self.draft)),
            former_plan: None,
            barred: self.barred.all(),
            serving: self.serving_fingerprints(),
            proven: self.proven_pools(),
            taken: self.taken_endpoints(),
            trials: Trials::Changed,
        }
    }

    /// Gives the pools that a master has served with, adopted ones included.
    fn proven_pools(&self) -> BTreeSet<PoolName> {
        let serving = self.fleet.shards().filter_map(|shard| self.masters.get(&MasterId::new(shard.id(), shard.serving()?.0)));
        let served = self.good.values().chain(serving.map(|master| &master.blueprint));
        served.flat_map(|blueprint| &blueprint.plan.placements).map(|placement| placement.pool.clone()).collect()
    }

    /// Gives the fingerprint of what serves each shard.
    fn serving_fingerprints(&self) -> BTreeMap<ShardId, Fingerprint> {
        self.fleet
            .shards()
            .filter_map(|shard| {
                let master = self.masters.get(&MasterId::new(shard.id(), shard.serving()?.0))?;
                Some((shard.id().clone(), master.blueprint.fingerprint.clone()))
            })
            .collect()
    }

    /// Takes a reading's end.
    pub(super) fn drafted(&mut self, mut result: DraftResult) {
        self.tasks.under_way = false;
        self.snapshot_dirty = true;
        if self.phase != super::supervisor::Phase::Stopping && self.takeover.is_some() {
            result = match self.takeover_drafted(result) {
                Some(result) => result,
                None => return,
            };
        }
        let replies = match &self.call {
            Some(ActiveCall { what: Followed::Reading, .. }) => self.call.take().and_then(|call| call.replies),
            _ => None,
        };
        if self.phase == super::supervisor::Phase::Stopping {
            if let Some(replies) = replies {
                replies.refuse(ErrorCode::Stopping, "the supervisor is stopping");
            }
            return;
        }
        let draft = match result {
            Ok(draft) => draft,
            Err(unread) => {
                for problem in &unread.problems {
                    tracing::error!(problem = %problem, "reload refused");
                }
                if let Some(replies) = replies {
                    replies.finish(refusal(&unread));
                }
                self.tell_reloaded();
                return;
            }
        };
        let order = self.adopt(draft);
        self.begin(order, replies);
    }

    /// Makes a draft the present one and gives the job that brings what runs in line with it.
    pub(super) fn adopt(&mut self, draft: Draft) -> JobOrder {
        for bad in &draft.plan.quarantined {
            if !self.draft.plan.quarantined.contains(bad) {
                tracing::error!(pool = %bad.pool, problem = %bad.problem, "pool kept out");
            }
        }
        self.settings = Rc::clone(&draft.settings);
        self.kept = Kept::Known(draft.keepalive.clone());
        self.draft = Rc::new(draft);
        self.write_plan();
        self.fleet.set_timing(timing(&self.settings), self.settings.restart.settle);
        self.watch_files();
        self.keep_pinned();
        self.difference()
    }

    /// Gives the job that brings what runs in line with the present draft.
    pub(super) fn difference(&mut self) -> JobOrder {
        let draft = Rc::clone(&self.draft);
        let (changed, retire) = self.differing(&draft);
        for id in &changed {
            self.fleet.blueprint_changed(id);
        }
        let nginx = if self.draft.nginx.is_some() { NginxStep::Last } else { NginxStep::None };
        JobOrder { kind: JobKind::Apply, shards: changed, together: Vec::new(), retire, nginx }
    }

    /// Gives the shards of which a draft makes something else than what serves, in the order of their turns, and those that it
    /// has no longer.
    pub(super) fn differing(&self, draft: &Draft) -> (Vec<ShardId>, Vec<ShardId>) {
        let serving = self.serving_fingerprints();
        let differs = |(id, blueprint): &(&ShardId, &Rc<super::blueprint::Blueprint>)| serving.get(*id) != Some(&blueprint.fingerprint);
        let mut changed: Vec<ShardId> = draft.blueprints.iter().filter(differs).map(|(id, _)| id.clone()).collect();
        // From the last shard to the first: a pool that becomes split keeps its old path, which shard 1 takes, to the end.
        changed.sort_by(|one, other| one.group.cmp(&other.group).then(other.index.cmp(&one.index)));
        let gone = self.fleet.shards().filter(|shard| shard.wanted() != Wanted::Retired && !draft.blueprints.contains_key(shard.id()));
        let retire = gone.map(|shard| shard.id().clone()).collect();
        (changed, retire)
    }

    /// Watches the files the present draft was made from.
    pub(super) fn watch_files(&mut self) {
        if let Some(task) = self.watcher.take() {
            task.abort();
        }
        let paths = self.draft.watched.clone();
        let events = self.events.clone();
        self.watcher = Some(tokio::task::spawn_local(async move {
            let mut watcher = match Watcher::new(paths) {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::warn!(error = %error, "files are not watched");
                    return;
                }
            };
            loop {
                let Ok(changed) = watcher.changed().await else { return };
                super::tell(&events, Event::Changed(changed)).await;
            }
        }));
    }

    /// A file of a bad pool changed: it is tried again.
    pub(super) fn files_changed(&mut self, paths: &[PathBuf]) {
        let bad = &self.draft.plan.quarantined;
        let concerns = |path: &PathBuf| bad.iter().any(|bad| bad.problem.place.as_ref().is_some_and(|place| place.file == *path));
        let unplaced = bad.iter().any(|bad| bad.problem.place.is_none());
        if (unplaced && !bad.is_empty()) || paths.iter().any(concerns) {
            tracing::info!("file of a bad pool changed");
            self.reload(None);
        }
    }
}

/// Gives the answer to a reading from which nothing came.
pub(super) fn refusal(unread: &Unread) -> Reply {
    let errors = unread.problems.iter().filter(|problem| problem.severity == crate::model::problem::Severity::Error);
    let (code, message, hint) = match unread.fault {
        Fault::Files => (
            ErrorCode::Config,
            "settings or pool files are wrong; nothing was changed",
            "run polyfpm check for every problem with its remedy",
        ),
        Fault::Host => {
            (ErrorCode::Failed, "what is written could not be tried; nothing was changed", "mend the cause and run the command again")
        }
    };
    Reply::Error {
        code,
        message: message.to_owned(),
        causes: errors.map(ToString::to_string).collect(),
        hint: Some(hint.to_owned()),
        job: None,
        shards: Vec::new(),
    }
}
