//! Public paths that others took away while their listeners live.
//!
//! An operator removes a socket file, a clean-up job wipes a directory: nobody can connect, though every worker waits. So the
//! directories of all public paths are looked at every second, one question for each; only where one has changed are its
//! files compared with what was put there. A file that is gone is linked again from its second name (`sys::listener::Keep`),
//! with no restart. Where that is gone too, or is on another filesystem, the shard is handed over to a master with a new
//! listener. What somebody else put at a path is left there and named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::sockets::Held;
use super::supervisor::{Phase, Supervisor};
use crate::core::fleet::{JobKind, JobOrder, NginxStep};
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, ShardId};
use crate::model::time::Moment;
use crate::sys::directory::{Remembered, Stamp};
use crate::sys::listener::{FileId, Keep, PublishError, identity};

/// How often directories are looked at: for so long at most clients find no socket.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long after one handover for the sake of lost listeners the next may begin: one that did not help must not storm.
const RENEW_AGAIN: Duration = Duration::from_secs(30);

/// What is known of the public paths.
#[derive(Debug)]
pub(super) struct PathBook {
    keep: Keep,
    directories: BTreeMap<PathBuf, Directory>,
    faults: BTreeMap<Endpoint, Fault>,
    made_again: BTreeMap<Endpoint, u32>,
    /// The state of the sockets for which `directories` was made.
    of: Option<u64>,
    changes: u64,
    renewed_at: Option<Moment>,
    next: Moment,
}

/// One directory with public paths.
#[derive(Debug, Default)]
struct Directory {
    paths: Vec<(Endpoint, FileId)>,
    /// As it was when every path in it was right, and nothing could have changed unseen.
    settled: Option<Stamp>,
    was: Remembered,
}

/// Why a path does not lead to its listener.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    why: String,
    /// What stands there instead.
    stands: Option<FileId>,
}

impl PathBook {
    /// Knows nothing yet; second links are kept below the runtime directory.
    pub(super) fn new(runtime_directory: &Path) -> Self {
        Self {
            keep: Keep::at(runtime_directory.join("kept")),
            directories: BTreeMap::new(),
            faults: BTreeMap::new(),
            made_again: BTreeMap::new(),
            of: None,
            changes: 0,
            renewed_at: None,
            next: Moment::START,
        }
    }

    /// Tells whether nothing stands at a listener's path, though it was public: its file has a second link.
    pub(super) fn has_lost_its_path(&self, held: &Held) -> bool {
        let was_public = held.listener.file_id().is_some_and(|file| self.keep.has(file));
        was_public && held.plan.endpoint.path().is_some_and(|path| identity(path).is_none())
    }

    /// Gives why clients do not reach the listener of an endpoint, where that is so.
    pub(super) fn fault(&self, endpoint: &Endpoint) -> Option<&str> {
        self.faults.get(endpoint).map(|fault| fault.why.as_str())
    }

    /// Tells whether every path leads to its listener.
    pub(super) fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// Counts how often a path was gone and made again.
    pub(super) fn made_again(&self, endpoint: &Endpoint) -> u32 {
        self.made_again.get(endpoint).copied().unwrap_or_default()
    }

    /// Counts changes of what the three before tell.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Gives when the next look is due.
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }

    /// Hears that the runtime directory was made anew.
    pub(super) fn begin_anew(&mut self) {
        self.keep.forget();
        self.of = None;
    }

    /// Removes the second links.
    pub(super) fn clear(&mut self) {
        self.keep.clear();
    }

    /// Looks at every directory; gives the paths that do not lead to their listeners.
    fn wrong(&mut self) -> Vec<(Endpoint, FileId)> {
        let mut all = Vec::new();
        for (path, directory) in &mut self.directories {
            let stamp = Stamp::of(path);
            if stamp.is_some() && stamp == directory.settled {
                continue;
            }
            let leads = |(endpoint, file): &&(Endpoint, FileId)| endpoint.path().and_then(identity) == Some(*file);
            let (right, wrong): (Vec<_>, Vec<_>) = directory.paths.iter().partition(leads);
            if !self.faults.is_empty() {
                let before = self.faults.len();
                self.faults.retain(|endpoint, _| !right.iter().any(|(right, _)| right == endpoint));
                self.changes += u64::from(self.faults.len() < before);
            }
            if stamp.is_some() {
                directory.was = Remembered::of(path);
            }
            directory.settled = stamp.filter(|stamp| wrong.is_empty() && stamp.has_settled());
            all.extend(wrong.into_iter().cloned());
        }
        all
    }

    /// Makes a path again, its directory too where that is ours to make. `Lost`: nothing is left to make it from.
    fn make_again(&self, path: &Path, file: FileId) -> Result<(), NotMade> {
        let directory = path.parent().and_then(|above| self.directories.get(above));
        if let Some(directory) = directory {
            directory.was.make_again().map_err(|error| NotMade::Named(super::chain(&error)))?;
        }
        if !self.keep.has(file) {
            return Err(NotMade::Lost);
        }
        self.keep.restore(file, path).map_err(|error| match &error {
            PublishError::Vanished { .. } | PublishError::OtherFilesystem { .. } => NotMade::Lost,
            PublishError::Directory { source, .. } if source.is_missing() => NotMade::Lost,
            PublishError::NotUnix { .. }
            | PublishError::Directory { .. }
            | PublishError::Live { .. }
            | PublishError::NotSocket { .. }
            | PublishError::Step { .. } => NotMade::Named(super::chain(&error)),
        })
    }

    fn name_fault(&mut self, endpoint: &Endpoint, fault: Fault) {
        if self.faults.get(endpoint) == Some(&fault) {
            return;
        }
        tracing::error!(endpoint = %endpoint, why = fault.why, "clients do not reach a listener");
        self.changes += 1;
        self.faults.insert(endpoint.clone(), fault);
    }

    fn note_made(&mut self, endpoint: &Endpoint) {
        let times = self.made_again.entry(endpoint.clone()).or_default();
        *times = times.saturating_add(1);
        tracing::warn!(endpoint = %endpoint, times = *times, "path was gone and was made again");
        self.changes += 1;
        self.faults.remove(endpoint);
    }
}

/// Why a path was not made again.
enum NotMade {
    /// Its socket has no name left.
    Lost,
    /// For this reason.
    Named(String),
}

impl Supervisor {
    /// Looks at all public paths; those that are gone are made again.
    pub(super) fn look_at_paths(&mut self) {
        let now = self.now();
        self.paths.next = now.after(LOOK_EVERY);
        // Until everything serves, and once everything leaves, paths come and go.
        if self.phase != Phase::Running {
            return;
        }
        self.gather_paths();
        let before = self.paths.changes;
        for (endpoint, file) in self.paths.wrong() {
            self.mend_path(&endpoint, file);
        }
        self.snapshot_dirty |= self.paths.changes != before;
        self.renew_lost(now);
    }

    /// Takes in what has become public since the last look.
    fn gather_paths(&mut self) {
        let now = self.sockets.changes();
        if self.paths.of.replace(now) == Some(now) {
            return;
        }
        let public = self.sockets.public_files();
        let files: Vec<(&Path, FileId)> = public.iter().filter_map(|(endpoint, file)| Some((endpoint.path()?, *file))).collect();
        if let Err(error) = self.paths.keep.set(&files) {
            tracing::warn!(error = %super::chain(&error), "sockets have no second names");
        }
        let mut former = std::mem::take(&mut self.paths.directories);
        for (endpoint, file) in public {
            let Some(above) = endpoint.path().and_then(Path::parent) else { continue };
            let known = || Directory { was: former.remove(above).unwrap_or_default().was, ..Directory::default() };
            self.paths.directories.entry(above.to_owned()).or_insert_with(known).paths.push((endpoint, file));
        }
        let directories = &self.paths.directories;
        let is_public =
            |endpoint: &Endpoint| directories.values().flat_map(|directory| &directory.paths).any(|(known, _)| known == endpoint);
        self.paths.faults.retain(|endpoint, _| is_public(endpoint));
        self.paths.made_again.retain(|endpoint, _| is_public(endpoint));
    }

    fn mend_path(&mut self, endpoint: &Endpoint, file: FileId) {
        let Some(path) = endpoint.path() else { return };
        let stands = identity(path);
        // What somebody else put there is looked at once: who listens there sees a connection each time.
        if stands.is_some() && self.paths.faults.get(endpoint).is_some_and(|fault| fault.stands == stands) {
            return;
        }
        match self.paths.make_again(path, file) {
            Ok(()) => self.paths.note_made(endpoint),
            Err(NotMade::Lost) => {
                self.sockets.lose(endpoint);
                let why = "its file is gone and cannot be linked again: a new master brings a new one".to_owned();
                self.paths.name_fault(endpoint, Fault { why, stands });
            }
            Err(NotMade::Named(why)) => self.paths.name_fault(endpoint, Fault { why, stands }),
        }
    }

    /// Hands shards over whose listeners, or private files, cannot be had back.
    fn renew_lost(&mut self, now: Moment) {
        let recently = self.paths.renewed_at.is_some_and(|at| now - at < RENEW_AGAIN);
        if recently || self.job_view().is_some() {
            return;
        }
        let serving = self.fleet.shards().filter(|shard| shard.serving().is_some()).map(crate::core::shard::Shard::id);
        let shards: Vec<ShardId> = serving.filter(|id| self.has_lost(id)).cloned().collect();
        if shards.is_empty() {
            return;
        }
        let names = shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        tracing::warn!(shards = names, "listeners or private files are lost: new masters are started");
        self.paths.renewed_at = Some(now);
        let order = JobOrder { kind: JobKind::Heal, shards, together: Vec::new(), retire: Vec::new(), nginx: NginxStep::None };
        self.begin(order, None);
    }

    fn has_lost(&self, id: &ShardId) -> bool {
        let lost = self.held.get(id).is_some_and(|set| set.iter().any(|held| self.sockets.is_lost(&held.plan.endpoint)));
        let serving = self.fleet.shard(id).and_then(crate::core::shard::Shard::serving);
        let master = serving.and_then(|(generation, _)| self.masters.get(&MasterId::new(id, generation)));
        lost || master.is_some_and(|master| master.directory.symlink_metadata().is_err())
    }
}
